"""From the profiler's clock to the modelled one: marks say at which moments they stood where."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

MARK = "windtunnel:"
"""How the names of marks in the profiler's own record begin; a number follows."""

SPREAD_NS = 500
"""Over how much modelled time events of one modelled instant are spread, so that their nesting still shows."""
ROOM_NS = 600
"""How far other events are from memory that is given back: PyTorch looks for it with times rounded to 250 ns."""


class SeamMark:
    """Something that the seam did: on which thread, the host's time before and after, and the rows that it left.

    Of an operator also its `name`, and whether it has to do with a device.
    """

    __slots__ = ("after_ns", "before_ns", "first", "last", "name", "on_device", "thread")

    def __init__(self, thread: int, before_ns: int, first: int) -> None:
        self.thread = thread
        self.before_ns = self.after_ns = before_ns
        self.first = self.last = first
        self.name = ""
        self.on_device = False

    def memory_ns(self) -> int:
        """How long after its beginning a tensor's memory is taken: on a GPU, before the kernel is launched (modelled).

        Not at once: PyTorch before its pull request 171788 rounds times by a quarter of a microsecond when it looks
        for an operator's memory, and would miss it (MemRecordsAcc in torch/autograd/profiler_util.py).
        """
        return (self.after_ns - self.before_ns) // 4


class Taken(NamedTuple):
    """What a storage took on a device: a block's size and address, and what the device had reserved then, in bytes."""

    device: int
    size_bytes: int
    address: int
    reserved_bytes: int


class Death(NamedTuple):
    """The end of a storage on a device: in ns since the epoch, and what it held."""

    real_ns: int
    taken: Taken


class FailedRequest(NamedTuple):
    """A request for memory that could not be served: when on the modelled clock of the host, and sizes in bytes."""

    host_ns: int
    device: int
    size_bytes: int
    allocated_bytes: int
    reserved_bytes: int


class Timeline:
    """One thread of a window.

    `points` are moments of which both times are known: (the profiler's ns, modelled ns), ascending. Between two of them
    time passes evenly. With no device work there is nothing modelled and the profiler's own times hold.
    """

    def __init__(self, points: list[tuple[int, int]]) -> None:
        self._real = [real for real, _ in points]
        self._modelled = [modelled for _, modelled in points]

    def at(self, real_ns: int) -> int:
        """The modelled time of a moment; before the first and after the last point, theirs."""
        after = bisect_right(self._real, real_ns)
        if after == 0:
            return self._modelled[0]
        before = after - 1
        if after == len(self._real):
            return self._modelled[before]
        begin, end = self._real[before], self._real[after]
        low, high = self._modelled[before], self._modelled[after]
        return low + (high - low) * (real_ns - begin) // max(1, end - begin)


class Spans:
    """Disjoint stretches of one thread's time, in the profiler's ns."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(spans):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(start)
                self._ends.append(end)

    def __contains__(self, time_ns: int) -> bool:
        before = bisect_right(self._starts, time_ns) - 1
        return before >= 0 and time_ns <= self._ends[before]


def spread(times: Iterable[int], at: Callable[[int], int], alone: Collection[int] = ()) -> dict[int, int]:
    """Where the ends of a thread's events lie in modelled time: in the same order, and apart where there is room.

    Those that stand `alone` have room before and after, whatever comes.
    """
    ordered = sorted(set(times))
    groups: dict[int, list[int]] = {}
    for real in ordered:
        groups.setdefault(at(real), []).append(real)
    found: dict[int, int] = {}
    latest = 0
    for modelled, group in groups.items():
        room = min(len(group), SPREAD_NS)
        for position, real in enumerate(group):
            latest = found[real] = max(latest, modelled + position * room // len(group))
            if real in alone:
                found[real] += ROOM_NS
                latest += 2 * ROOM_NS
    return found
