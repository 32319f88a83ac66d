"""How full a device is over time: kernels of several streams run together while their blocks fit, else one waits.

Occupancy is in thousandths of the device. A kernel starts when its whole occupancy fits for its whole length. A
kernel of higher priority waits only for what runs at that moment: blocks of lower priority that are queued behind it
start later, and their streams are charged for it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

FULL = 1000
"""Occupancy in thousandths: what one device can run at once."""

_KEPT = 4096
"""Steps of a level's past that are kept before it is cut off."""


class Level:
    """A step function of time: `steps[i]` holds from `times[i]` until the next; before the first and at the end 0."""

    __slots__ = ("steps", "times")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.steps: list[int] = []

    def at(self, time_ns: int) -> int:
        """The level at a time."""
        position = bisect_right(self.times, time_ns) - 1
        return self.steps[position] if position >= 0 else 0

    def change_after(self, time_ns: int) -> int:
        """The first time after `time_ns` at which the level changes; `time_ns` when it never does."""
        position = bisect_right(self.times, time_ns)
        return self.times[position] if position < len(self.times) else time_ns

    def fit(self, start_ns: int, duration_ns: int, room: int) -> int:
        """The earliest time from `start_ns` from which the level stays at most `room` for `duration_ns`."""
        times, steps = self.times, self.steps
        if not times or start_ns >= times[-1]:
            return start_ns
        position = max(0, bisect_right(times, start_ns) - 1)
        start = start_ns
        for index in range(position, len(times)):
            if times[index] >= start + duration_ns:
                break
            if steps[index] > room:
                start = max(start, times[index + 1])
        return start

    def add(self, start_ns: int, end_ns: int, amount: int) -> None:
        """Raise the level by `amount` from `start_ns` until `end_ns`."""
        if end_ns <= start_ns:
            return
        times, steps = self.times, self.steps
        if times and start_ns >= times[-1]:  # after all the others, as most kernels are
            after = steps[-1]
            if start_ns == times[-1]:
                steps[-1] = after + amount
            else:
                times.append(start_ns)
                steps.append(after + amount)
            times.append(end_ns)
            steps.append(after)
            return
        first, last = self._step(start_ns), self._step(end_ns)
        for index in range(first, last):
            steps[index] += amount

    def _step(self, time_ns: int) -> int:
        position = bisect_left(self.times, time_ns)
        if position == len(self.times) or self.times[position] != time_ns:
            self.times.insert(position, time_ns)
            self.steps.insert(position, self.steps[position - 1] if position else 0)
        return position

    def forget(self, before_ns: int) -> None:
        """Drop the past once it has grown long."""
        if len(self.times) > _KEPT:
            position = bisect_right(self.times, before_ns) - 1
            if position > 0:
                del self.times[:position], self.steps[:position]


class Occupancy:
    """A device's occupancy over time, by priority (smaller numbers go first)."""

    def __init__(self) -> None:
        self.levels: dict[int, Level] = {}

    def place(self, issued_ns: int, start_ns: int, duration_ns: int, occupancy: int, priority: int = 0) -> int:
        """The time from `start_ns` at which a kernel finds room, which it takes; nothing comes before `issued_ns`."""
        own = self.levels.get(priority)
        if own is None:
            own = self.levels[priority] = Level()
        room = FULL - occupancy
        start = start_ns
        if len(self.levels) == 1:
            start = own.fit(start, duration_ns, room)
        else:
            start = self._among_others(start, duration_ns, room, priority)
        own.add(start, start + duration_ns, occupancy)
        own.forget(issued_ns)
        return start

    def _among_others(self, start_ns: int, duration_ns: int, room: int, priority: int) -> int:
        lower = [level for other, level in self.levels.items() if other > priority]
        start = start_ns
        if sum(level.at(start) for level in lower) > room:
            start = max(level.change_after(start) for level in lower)
        while True:
            before = start
            for other, level in self.levels.items():
                if other <= priority:
                    start = level.fit(start, duration_ns, room)
            if start == before:
                return start

    def lower(self, time_ns: int, priority: int) -> int:
        """How much of the device lower priorities were to use at a time."""
        return sum(level.at(time_ns) for other, level in self.levels.items() if other > priority)
