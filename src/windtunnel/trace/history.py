"""The allocators' history as NumPy arrays, a block at a time: which bytes each row adds or gives back, and of whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from windtunnel.trace.columns import Numbers, Truths, columns
from windtunnel.trace.trace import MEMORY_ACTIONS, MEMORY_EXCESS, MEMORY_ROLE, Trace

ALLOC, FREE = MEMORY_ACTIONS.index("alloc"), MEMORY_ACTIONS.index("free_requested")
COMPLETED = MEMORY_ACTIONS.index("free_completed")
EXCESS_BITS = (1 << MEMORY_ROLE - MEMORY_EXCESS) - 1
MOST_BYTES = 1 << 48
"""More than any device has; a damaged file's larger sizes count as this, so that sums stay numbers of 64 bits."""


class Taken(NamedTuple):
    """An allocation that is alive: the number of its row, its bytes, and the row's site and last column."""

    row: int
    size_bytes: int
    site: int
    packed: int


@dataclass(slots=True)
class Changes:
    """Allocations and their ends in the history's order, a column an array.

    `row` is the number in the history. `change` are the bytes that a row adds, or takes away: nothing at the end of
    what was never seen to begin. `owner` and `category` are those of the allocation that begins or ends, `site` and
    `role` the row's own.
    """

    row: Numbers
    device: Numbers
    allocates: Truths
    time_ns: Numbers
    site: Numbers
    role: Numbers
    change: Numbers
    owner: Numbers
    category: Numbers

    def __len__(self) -> int:
        return len(self.row)

    def only(self, which: Truths) -> Changes:
        """Some of them."""
        return Changes(*(getattr(self, name)[which] for name in self.__slots__))

    def of_devices(self) -> Iterator[tuple[int, Changes]]:
        """Those of each device."""
        for device in np.unique(self.device).tolist():
            yield device, self.only(self.device == device)


class History:
    """Reads a trace's history; `alive` is what is allocated where the reading stands, by device and address."""

    def __init__(self, trace: Trace, ends: int = COMPLETED) -> None:
        self.trace = trace
        self.ends = ends
        self.alive: dict[tuple[int, int], Taken] = {}

    def changes(self, last: int | None = None) -> Iterator[Changes]:
        """All changes, or those until the row `last`."""
        first = 0
        for found in columns(self.trace.memory):
            number = np.arange(first, first + found.shape[1], dtype=np.int64)
            first += found.shape[1]
            wanted = (found[0] == ALLOC) | (found[0] == self.ends)
            if last is not None:
                wanted &= number <= last
            if wanted.any():
                yield self._paired(number[wanted], found[:, wanted])
            if last is not None and first > last:
                return

    def read(self, last: int) -> None:
        """Read until the row `last`."""
        for _ in self.changes(last):
            pass

    def _paired(self, number: Numbers, found: Numbers) -> Changes:
        _, device, _, address, size, time_ns, site, packed = found
        allocates = found[0] == ALLOC
        size = np.minimum(size + (packed >> MEMORY_EXCESS & EXCESS_BITS), MOST_BYTES)
        # Sorted by address, the end of an allocation follows its beginning.
        order = np.lexsort((number, address, device))
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = (np.diff(device[order]) != 0) | (np.diff(address[order]) != 0)
        before = np.roll(order, 1)
        known = ~allocates[order] & ~begins & allocates[before]
        change, owner, of = np.where(allocates, size, 0), site.copy(), packed.copy()
        freed, taken = order[known], before[known]
        change[freed], owner[freed], of[freed] = -size[taken], site[taken], packed[taken]
        for index in order[begins & ~allocates[order]].tolist():
            earlier = self.alive.pop((int(device[index]), int(address[index])), None)
            if earlier is not None:
                change[index], owner[index], of[index] = -earlier.size_bytes, earlier.site, earlier.packed
        last = np.roll(begins, -1)
        for index in np.sort(order[last]).tolist():
            key = int(device[index]), int(address[index])
            if allocates[index]:
                self.alive.pop(key, None)
                self.alive[key] = Taken(int(number[index]), int(size[index]), int(site[index]), int(packed[index]))
            elif key in self.alive:
                del self.alive[key]
        return Changes(number, device, allocates, time_ns, site, packed >> MEMORY_ROLE, change, owner, of & 255)
