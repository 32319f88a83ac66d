"""How full a device is over time: kernels of several streams run together while their blocks fit, else one waits.

Occupancy is in thousandths of the device. A kernel starts once its whole occupancy fits beside what runs at that
moment. What is to start later, though it was submitted before, does not hold it up: its blocks find less room then, and
its stream is charged for it. So does what runs at a lower priority.
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

    def beyond(self, start_ns: int, end_ns: int, room: int) -> int:
        """By how much the level is above `room` between two times: thousandths times nanoseconds."""
        times, steps = self.times, self.steps
        total = 0
        for index in range(max(0, bisect_right(times, start_ns) - 1), len(times)):
            if times[index] >= end_ns:
                break
            if steps[index] > room:
                until = times[index + 1] if index + 1 < len(times) else end_ns
                total += (min(until, end_ns) - max(times[index], start_ns)) * (steps[index] - room)
        return total

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
        self.displaced_ns = 0
        """How much longer the device takes for the work of the same priority that the last kernel came before."""

    def place(self, issued_ns: int, start_ns: int, duration_ns: int, occupancy: int, priority: int = 0) -> int:
        """The time from `start_ns` at which a kernel finds room, which it takes; nothing comes before `issued_ns`."""
        own = self.levels.get(priority)
        if own is None:
            own = self.levels[priority] = Level()
        room = FULL - occupancy
        start = start_ns
        if len(self.levels) == 1:
            start = own.fit(start, 1, room)
        else:
            start = self._among_others(start, duration_ns, room, priority)
        self.displaced_ns = own.beyond(start, start + duration_ns, room) // FULL
        own.add(start, start + duration_ns, occupancy)
        own.forget(issued_ns)
        return start

    def prolong(self, by: Communication, start_ns: int, duration_ns: int, occupancy: int, priority: int) -> int:
        """How long a kernel that found room takes beside collectives; it holds its room as long."""
        end_ns = start_ns + duration_ns
        longer_ns = by.lost_ns(start_ns, end_ns)
        self.levels[priority].add(end_ns, end_ns + longer_ns, occupancy)
        return duration_ns + longer_ns

    def _among_others(self, start_ns: int, duration_ns: int, room: int, priority: int) -> int:
        lower = [level for other, level in self.levels.items() if other > priority]
        start = start_ns
        if sum(level.at(start) for level in lower) > room:
            start = max(level.change_after(start) for level in lower)
        while True:
            before = start
            for other, level in self.levels.items():
                if other <= priority:
                    start = level.fit(start, 1 if other == priority else duration_ns, room)
            if start == before:
                return start

    def lower(self, time_ns: int, priority: int) -> int:
        """How much of the device lower priorities were to use at a time."""
        return sum(level.at(time_ns) for other, level in self.levels.items() if other > priority)


class Communication(Level):
    """Which share of the multiprocessors collectives take over time."""

    def lost_ns(self, start_ns: int, end_ns: int) -> int:
        """How much longer a kernel takes that would run between two times without them."""
        if not self.times or start_ns >= self.times[-1]:
            return 0
        taken = self.beyond(start_ns, end_ns, 0) // max(1, end_ns - start_ns)
        return lost(end_ns - start_ns, taken)

    def spent_ns(self, start_ns: int, end_ns: int) -> int:
        """How much of the time between two it was, of a kernel that they slowed down: `lost_ns` undone."""
        if not self.times or start_ns >= self.times[-1] or end_ns <= start_ns:
            return 0
        least, most = 0, end_ns - start_ns
        while least < most:  # the shortest that takes as long
            middle = (least + most) // 2
            if middle + self.lost_ns(start_ns, start_ns + middle) < end_ns - start_ns:
                least = middle + 1
            else:
                most = middle
        return end_ns - start_ns - least


def lost(duration_ns: int, share: int) -> int:
    """How much longer work takes on what a share of a device leaves, of which half is the most."""
    share = min(share, FULL // 2)
    return duration_ns * share // (FULL - share)
