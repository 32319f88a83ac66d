"""Which memory lies at an address: of emulated devices, whose values are in this process's own memory."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from windtunnel import ptx


@dataclass(frozen=True)
class Allocation(ptx.Allocation):
    """A range of memory of a device, and what it stands for: a reference to a tensor's tag, or the memory itself."""

    device: int = 0
    owner: object = None


class AddressMap:
    """Ranges of memory that do not overlap, found by any address in them."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._by_start: dict[int, Allocation] = {}

    def add(self, allocation: Allocation) -> None:
        """Take in a range; what was known at its beginning is forgotten."""
        if allocation.start not in self._by_start:
            insort(self._starts, allocation.start)
        self._by_start[allocation.start] = allocation

    def remove(self, start: int) -> Allocation | None:
        """Forget the range that begins there."""
        found = self._by_start.pop(start, None)
        if found is not None:
            del self._starts[bisect_right(self._starts, start) - 1]
        return found

    @contextmanager
    def holding(self, allocations: Iterable[Allocation]) -> Iterator[None]:
        """For a while these are there in place of what overlaps them: the memory is used by turns."""
        added, hidden = [], []
        for one in allocations:
            known = self.allocation(one.start)
            if known is not None and (known.start, known.size) == (one.start, one.size):
                continue
            end = one.start + one.size
            over = [other for other in self if other.start < end and one.start < other.start + other.size]
            for other in over:
                self.remove(other.start)
            hidden += over
            self.add(one)
            added.append(one.start)
        try:
            yield
        finally:
            for start in added:
                self.remove(start)
            for other in hidden:
                self.add(other)

    def allocation(self, address: int) -> Allocation | None:
        """The range that an address is in; the byte after its end belongs to none."""
        found = self.before(address)
        return found if found is not None and address < found.start + max(found.size, 1) else None

    def has_bytes(self, allocation: Allocation) -> bool:
        """Whether there is memory here for a range: without data a tensor has none."""
        return True

    def real(self, address: int) -> int:
        """Where an address lies here that a framework shows of its memory: the same, where it shows none other."""
        return address

    def before(self, address: int) -> Allocation | None:
        """The last range that begins at an address or before it."""
        at = bisect_right(self._starts, address) - 1
        return None if at < 0 else self._by_start[self._starts[at]]

    def allocations(self) -> Sequence[Allocation]:
        """All of them, by address."""
        return [self._by_start[start] for start in self._starts]

    def __iter__(self) -> Iterator[Allocation]:
        return iter(self.allocations())
