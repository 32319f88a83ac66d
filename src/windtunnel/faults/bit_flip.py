"""The fault `bit-flip`: a bit that turns over."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.faults import Fault, Hands


class BitFlip(Fault):
    """A bit of an element of an operator's result, or of what a collective has written, turns over.

    `bit` counts from the lowest; any bit, drawn by the seed, when it is left out. Silent data corruption looks like it.
    """

    name: ClassVar = "bit-flip"
    after: ClassVar = True
    options: ClassVar = {"bit": -1}

    def strike(self, hands: Hands) -> None:
        """Flip it."""
        hands.flip_bit(self.value["bit"], self.draw)
