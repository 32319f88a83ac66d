"""Host clocks: one a thread, in whole nanoseconds of modelled time, forward only."""

from __future__ import annotations

from understudy.errors import InternalError
from understudy.machine.order import VectorClock


class HostThread:
    """One thread of the program: where it stands in modelled time.

    `index` is the spawn index (0 is the main thread). A thread starts at its parent's time and a join brings the
    parent up to the child's. `order` is what the host knows to be complete; all threads of a process share it.
    """

    __slots__ = ("events", "index", "lanes", "now_ns", "order", "storages")

    def __init__(self, index: int, now_ns: int, order: VectorClock) -> None:
        self.index = index
        self.now_ns = now_ns
        self.order = order
        self.lanes: dict[object, int] = {}
        self.events = 0
        self.storages = 0  # how many storages this thread has numbered

    def advance(self, duration_ns: int) -> None:
        """Let the thread work, or sleep, for `duration_ns`."""
        if duration_ns < 0:
            raise InternalError(f"time cannot go backwards: {duration_ns} ns")
        self.now_ns += duration_ns

    def wait_until(self, time_ns: int) -> int:
        """Wait for `time_ns` when it is in the future; returns how long that took."""
        waited = time_ns - self.now_ns
        if waited <= 0:
            return 0
        self.now_ns = time_ns
        return waited
