"""The largest value that fits: a bisection whose guesses follow from the memory that two values needed."""

from __future__ import annotations

from windtunnel.planning.space import Largest

FACTOR = 8
"""Factor from the first value to the second, while it is unknown how memory grows."""


class Search:
    """One search. `next_value` says what to try, `found` takes the outcome, `best` is the largest that fits.

    Both sides of the answer are tried: it fits, and the next larger value does not or is out of range. The first guess
    is the value at which allocated memory should fill the GPU. If that fails because the allocator finds no contiguous
    room, the next is the value at which reserved memory should; between the two it bisects.
    """

    def __init__(self, largest: Largest, room_bytes: int) -> None:
        self.largest = largest
        self.room_bytes = room_bytes
        self.best: int | None = None
        self.too_large: int | None = None
        self._needed: dict[int, int] = {}
        self._taken: dict[int, int] = {}

    @property
    def done(self) -> bool:
        """Whether the search is over."""
        if self.best is None:
            return self.too_large is not None
        return self.best >= self.largest.top or self.too_large == self.best + self.largest.step

    def found(self, value: int, fits: bool, needed_bytes: int | None, taken_bytes: int | None = None) -> None:
        """Record the outcome of a value: whether it fits with a margin, and the memory needed and taken, if known."""
        if needed_bytes is not None:
            self._needed[value] = needed_bytes
        if taken_bytes is not None:
            self._taken[value] = taken_bytes
        if fits:
            self.best = max(value, self.best or value)
        else:
            self.too_large = min(value, self.too_large or value)

    def next_value(self) -> int | None:
        """The next value to try; None when it is done."""
        if self.done:
            return None
        if self.best is None:
            return self.largest.low
        low = self.best + self.largest.step
        high = self.largest.top if self.too_large is None else self.too_large - self.largest.step
        return min(high, max(low, self._guess(self.best)))

    def _guess(self, best: int) -> int:
        by_needed = self._filled(self._needed, best)
        if self.too_large is None:
            return self.largest.round(best * FACTOR) if by_needed is None else by_needed
        if by_needed is not None and best <= by_needed < self.too_large:
            return by_needed
        by_taken = self._filled(self._taken, best)
        if by_taken is not None and best < by_taken < self.too_large:
            return by_taken
        return self.largest.round((best + self.too_large) / 2)

    def _filled(self, known: dict[int, int], best: int) -> int | None:
        """The value that fills the memory, on a line through the largest that fits and the nearest other value."""
        others = [value for value in known if value != best]
        if best not in known or not others:
            return None
        other = min(others, key=lambda value: (abs(value - best), value))
        slope = (known[other] - known[best]) / (other - best)
        return self.largest.round(best + (self.room_bytes - known[best]) / slope) if slope > 0 else None
