"""The fault `hang`: a rank that stands still."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.faults import Fault, Hands


class Hang(Fault):
    """The program waits for ever at an operator, as for a lock or a file system that does not answer."""

    name: ClassVar = "hang"

    def strike(self, hands: Hands) -> None:
        """Stand still."""
        hands.hang()
