"""How long NCCL lets a call take: the group's timeout, and what was added to it for a while.

Source: `assignTimeoutToWork`, `addEphemeralTimeout` and the watchdog's `runLoop`
(torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

NOTHING = timedelta()


class GroupOptions(Protocol):
    """What a program may set on a group."""

    _timeout: timedelta


class Allowance:
    """The time that calls of one backend may take.

    What is `added` counts for every call until the first of them, which owns it, is done on the device.
    """

    def __init__(self, options: GroupOptions) -> None:
        self._options = options
        self.added = NOTHING
        self._owned: list[tuple[int, timedelta]] = []  # when its owner is done, and how much

    def add(self, more: timedelta) -> None:
        """Add so much for the calls that come."""
        self.added += more

    def timeout(self, now_ns: int) -> timedelta:
        """What a call has that is made now."""
        if self._owned:
            self.added -= sum((more for end_ns, more in self._owned if end_ns <= now_ns), NOTHING)
            self._owned = [one for one in self._owned if one[0] > now_ns]
        return self._options._timeout + self.added

    def called(self, end_ns: int) -> None:
        """A call was made that is done at `end_ns`: it owns what no call before it does."""
        mine = self.added - sum((more for _, more in self._owned), NOTHING)
        if mine > NOTHING:
            self._owned.append((end_ns, mine))
