"""The fault `nan`: a value that is none."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.faults import Fault, Hands


class Nan(Fault):
    """An element of an operator's result, or of what a collective has written, becomes `value`.

    nan when it is left out; also inf or any number.
    """

    name: ClassVar = "nan"
    after: ClassVar = True
    options: ClassVar = {"value": float("nan")}

    def strike(self, hands: Hands) -> None:
        """Write it."""
        hands.set_element(self.value["value"], self.draw)
