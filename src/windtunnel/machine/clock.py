"""Host clocks: one a thread, in whole nanoseconds of modelled time, forward only."""

from __future__ import annotations

from windtunnel.errors import InternalError
from windtunnel.machine.order import VectorClock


class Burst:
    """Threads that one thread started without joining any in between: they take turns at Python's lock."""

    __slots__ = ("begin_ns", "busy_ns", "joined")

    def __init__(self, begin_ns: int) -> None:
        self.begin_ns = begin_ns
        self.busy_ns = 0
        self.joined = False


class HostThread:
    """One thread of the program: where it stands in modelled time.

    `index` is the spawn index (0 is the main thread). A thread starts at its parent's time and a join brings the
    parent up to the child's. `order` is what the host knows to be complete; all threads of a process share it.
    """

    __slots__ = (
        "born_ns",
        "burst",
        "events",
        "extra_ns",
        "index",
        "lanes",
        "now_ns",
        "order",
        "own_burst",
        "storages",
        "waited_ns",
    )

    def __init__(self, index: int, now_ns: int, order: VectorClock) -> None:
        self.index = index
        self.now_ns = now_ns
        self.order = order
        self.lanes: dict[object, int] = {}
        self.events = 0
        self.extra_ns = 0  # what each launch takes beside its dispatch: in a backward pass, autograd's part
        self.born_ns = now_ns
        self.waited_ns = 0  # for devices, or asleep
        self.burst: Burst | None = None  # with whom this thread was started
        self.own_burst: Burst | None = None  # those that it started last
        self.storages = 0  # how many storages this thread has numbered

    def advance(self, duration_ns: int) -> None:
        """Let the thread work, or sleep, for `duration_ns`."""
        if duration_ns < 0:
            raise InternalError(f"time cannot go backwards: {duration_ns} ns")
        self.now_ns += duration_ns

    def sleep(self, duration_ns: int) -> None:
        """Let the thread do nothing for `duration_ns`."""
        self.advance(duration_ns)
        self.waited_ns += duration_ns

    def wait_until(self, time_ns: int) -> int:
        """Wait for `time_ns` when it is in the future; returns how long that took."""
        waited = time_ns - self.now_ns
        if waited <= 0:
            return 0
        self.now_ns = time_ns
        self.waited_ns += waited
        return waited


def started(parent: HostThread, child: HostThread) -> None:
    """Note that `parent` starts `child` now."""
    if parent.own_burst is None or parent.own_burst.joined:
        parent.own_burst = Burst(parent.now_ns)
    child.burst, child.born_ns, child.waited_ns = parent.own_burst, child.now_ns, 0


def ended(child: HostThread, lock_share: float) -> int:
    """When a thread that is over was done, in nanoseconds.

    Threads that ran at once took turns at Python's lock, which each held for `lock_share` of its work: together they
    took at least the sum of that.
    """
    burst = child.burst
    if burst is None:
        return child.now_ns
    burst.joined = True
    burst.busy_ns += max(0, child.now_ns - child.born_ns - child.waited_ns)
    return max(child.now_ns, burst.begin_ns + round(lock_share * burst.busy_ns))
