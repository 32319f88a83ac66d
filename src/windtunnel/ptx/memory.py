"""The host's memory that a kernel may touch."""

from __future__ import annotations

import bisect
import mmap
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

UNRESERVED = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
LARGE = 4 << 20
"""Bytes from which on memory is taken in large pages."""


@dataclass(frozen=True)
class Allocation:
    start: int
    size: int
    name: str = ""
    blank: bytearray | memoryview | None = None
    """A writable byte for each byte: 1 where nothing has written, which a launch clears as it writes. None: all is
    written."""
    traced: bool = False
    """Whether somebody asks which of its pages a launch has written whole."""


@dataclass(frozen=True)
class TouchedRange:
    """What a launch touched of one allocation: the bytes from `low` to `high`, or more."""

    start: int
    low: int
    high: int
    read: bool
    written: bool
    pages: tuple[tuple[int, int], ...] = ()
    """Of a traced allocation, the ranges of the host's pages of which all bytes are known to be written."""
    seen: tuple[int, int] | None = None
    """From the first to the last byte that the blocks touched that were looked at."""

    @property
    def span(self) -> tuple[int, int]:
        """What an order of accesses may hold it to: blocks of another launch may own the rest of an allocation."""
        return self.seen or (self.low, self.high)

    def moved(self, start: int, by: int) -> TouchedRange:
        """The same of an allocation at `start`, whose bytes lie `by` further on."""
        seen = self.seen and (self.seen[0] + by, self.seen[1] + by)
        return replace(self, start=start, low=self.low + by, high=self.high + by, seen=seen)


class Memory(Protocol):
    def allocation(self, address: int) -> Allocation | None: ...

    def allocations(self) -> Sequence[Allocation]: ...


class Allocations:
    """A fixed list of allocations: what tests and single kernels need."""

    def __init__(self, allocations: Iterable[Allocation]) -> None:
        self._sorted = sorted(allocations, key=lambda a: a.start)
        self._starts = [a.start for a in self._sorted]

    def allocation(self, address: int) -> Allocation | None:
        index = bisect.bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        found = self._sorted[index]
        return found if address < found.start + found.size else None

    def allocations(self) -> Sequence[Allocation]:
        return self._sorted


def zeroed(size: int, dense: bool = False) -> mmap.mmap:
    """Memory whose pages exist once they are touched: large ones where most will be, which is faster."""
    made = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | UNRESERVED)
    if dense and size >= LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        made.madvise(mmap.MADV_HUGEPAGE)
    return made
