"""The part of the CUDA driver that hands out device memory: sizes, counts and addresses, no bytes.

A `DeviceMemory` stands for one GPU's memory as `cudaMalloc`, `cudaFree` and the virtual memory calls see it. The
caching allocator of a process is one customer; its context and libraries are `occupied` bytes. `others` is what further
processes hold.

Addresses behave as in memory snapshots recorded on Linux (cranberrii/ftcourse `memory_snapshot.pickle`, 152 calls of
cudaMalloc): the driver takes address space from the system in multiples of 32 MiB, each new range below the earlier
ones, and serves a call from the lowest hole of its ranges that is large enough. `cuMemAddressReserve` begins at a low
address and goes up (Constructor-Sun/code_location `memory_snapshot.pickle`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

MIB = 1 << 20
PAGE_BYTES = 2 * MIB
"""Granularity of device memory and of large addresses (`cuMemGetAllocationGranularity` says 2 MiB on all GPUs)."""

RANGE_BYTES = 32 * MIB
_TOP = 0x7F80_0000_0000
_TOP_STEP = 1 << 39
_RESERVE_BASE = 0x3_0200_0000
_RESERVE_STEP = 1 << 42


class MemoryInfo(NamedTuple):
    """What `cudaMemGetInfo` says, in bytes."""

    free: int
    total: int


class Taken(NamedTuple):
    """Bytes that host code has, as it asked for them and in pages."""

    asked: int = 0
    reserved: int = 0


class Holder(NamedTuple):
    """A process that holds memory of a GPU: its number, and the bytes, its context included."""

    pid: int
    used_bytes: int


class AddressSpace:
    """Addresses of `cudaMalloc` on one device, deterministic: ranges from the system, holes inside them."""

    __slots__ = ("_bottom", "_by_size", "_gaps", "_holes", "_range_ends", "_range_starts", "_sorted")

    def __init__(self, top: int) -> None:
        self._bottom = top
        self._range_starts: list[int] = []
        self._range_ends: dict[int, int] = {}
        self._gaps: list[tuple[int, int]] = []
        self._holes: dict[int, int] = {}
        self._sorted: list[int] = []
        self._by_size: dict[int, list[int]] = {}

    def take(self, size: int) -> int:
        """An address for `size` bytes (a multiple of 2 MiB)."""
        best = 0
        for hole_size in [found for found in self._by_size if found >= size]:
            heap = self._by_size[hole_size]
            while heap and self._holes.get(heap[0]) != hole_size:
                heappop(heap)
            if not heap:
                del self._by_size[hole_size]
            elif not best or heap[0] < best:
                best = heap[0]
        if not best:
            best = self._new_range(-(-size // RANGE_BYTES) * RANGE_BYTES)
        hole_size = self._remove_hole(best)
        if hole_size > size:
            self._add_hole(best + size, hole_size - size)
        return best

    def give(self, address: int, size: int) -> None:
        """Return a range; a system range that is all hole goes back to the system."""
        position = bisect_left(self._sorted, address)
        end = address + size
        start = self._range_starts[bisect_left(self._range_starts, address + 1) - 1]
        range_end = self._range_ends[start]
        if position < len(self._sorted) and self._sorted[position] == end < range_end:
            end += self._remove_hole(end)
        if position > 0:
            before = self._sorted[position - 1]
            if before >= start and before + self._holes[before] == address:
                self._remove_hole(before)
                address = before
        if address == start and end == range_end:
            self._range_starts.remove(start)
            del self._range_ends[start]
            self._gaps.append((start, end - start))
        else:
            self._add_hole(address, end - address)

    def adopt(self, address: int, size: int) -> None:
        """Note memory that `take` did not give; to be called in order of address.

        Its range is what multiples of 32 MiB cover it. Behind the last piece of a range is a hole; gaps before it are
        taken to belong to libraries. New ranges go below.
        """
        start = address // RANGE_BYTES * RANGE_BYTES
        end = -(-(address + size) // RANGE_BYTES) * RANGE_BYTES
        position = bisect_left(self._range_starts, address + 1) - 1
        last = self._range_starts[position] if position >= 0 else None
        if last is not None and self._range_ends[last] > start:
            hole = self._sorted[-1] if self._sorted and self._sorted[-1] >= last else None
            if hole is not None:
                self._remove_hole(hole)
            self._range_ends[last] = max(end, self._range_ends[last])
            end = self._range_ends[last]
        else:
            self._range_starts.append(start)
            self._range_ends[start] = end
        if address + size < end:
            self._add_hole(address + size, end - address - size)
        self._bottom = min(self._bottom, start)

    def _new_range(self, size: int) -> int:
        """Address space from the system: the highest gap that fits, else below all ranges."""
        fitting = [gap for gap in self._gaps if gap[1] >= size]
        if fitting:
            address, gap_size = max(fitting)
            self._gaps.remove((address, gap_size))
            if gap_size > size:
                self._gaps.append((address, gap_size - size))
            start = address + gap_size - size
        else:
            start = self._bottom = self._bottom - size
        insort(self._range_starts, start)
        self._range_ends[start] = start + size
        self._add_hole(start, size)
        return start

    def _add_hole(self, address: int, size: int) -> None:
        self._holes[address] = size
        insort(self._sorted, address)
        heappush(self._by_size.setdefault(size, []), address)

    def _remove_hole(self, address: int) -> int:
        del self._sorted[bisect_left(self._sorted, address)]
        return self._holes.pop(address)


class DeviceMemory:
    """Memory of one GPU. Addresses are deterministic, 2 MiB aligned and unique per device.

    `total_bytes` is what `cudaMemGetInfo` calls total, `occupied_bytes` what this process uses beside the customers of
    this object (the CUDA context, libraries); it may be changed at any time. `on_call` hears of each
    call with its name and size, so that somebody can charge its time. Where it is `overcommitted`, requests are served
    beyond the total, so that what a program needs can be seen where it does not fit. `xid` is the number of the last of
    NVIDIA's Xid errors that the GPU has had, 0 for none.
    """

    __slots__ = (
        "_addresses",
        "_next_reservation",
        "_sizes",
        "free_calls",
        "malloc_calls",
        "map_calls",
        "most_own",
        "occupied_bytes",
        "on_call",
        "overcommitted",
        "own",
        "reserved_bytes",
        "total_bytes",
        "unmap_calls",
        "xid",
    )

    def __init__(self, total_bytes: int, occupied_bytes: int = 0, device: int = 0) -> None:
        self.total_bytes = total_bytes
        self.xid = 0
        self.occupied_bytes = occupied_bytes
        self.reserved_bytes = 0
        self.malloc_calls = 0
        self.free_calls = 0
        self.map_calls = 0
        self.unmap_calls = 0
        self.on_call: Callable[[str, int], None] | None = None
        self.overcommitted = False
        self.own = self.most_own = Taken()
        self._addresses = AddressSpace(_TOP - device * _TOP_STEP)
        self._next_reservation = _RESERVE_BASE + device * _RESERVE_STEP
        self._sizes: dict[int, int] = {}

    @property
    def free_bytes(self) -> int:
        """Bytes that a `cudaMalloc` could still get."""
        others = sum(holder.used_bytes for holder in self.others())
        return max(0, self.total_bytes - self.occupied_bytes - self.reserved_bytes - others)

    def others(self) -> list[Holder]:
        """The other processes that hold memory of this GPU now."""
        return []

    def info(self) -> MemoryInfo:
        """What `cudaMemGetInfo` returns."""
        return MemoryInfo(self.free_bytes, self.total_bytes)

    def malloc(self, size: int) -> int | None:
        """`cudaMalloc`: the address of `size` fresh bytes (rounded up to 2 MiB), or None when they are not there."""
        self.malloc_calls += 1
        size = -(-size // PAGE_BYTES) * PAGE_BYTES
        if self.on_call is not None:
            self.on_call("cudaMalloc", size)
        if size > self.free_bytes and not self.overcommitted:
            return None
        address = self._addresses.take(size)
        self._sizes[address] = size
        self.reserved_bytes += size
        return address

    def note_own(self, asked: int, sign: int = 1) -> None:
        """Host code has taken memory by `cudaMalloc` itself, beside the caching allocator, or given it back."""
        pages = -(-asked // PAGE_BYTES) * PAGE_BYTES
        self.own = Taken(self.own.asked + sign * asked, self.own.reserved + sign * pages)
        self.most_own = Taken(*map(max, self.own, self.most_own))

    def adopt(self, address: int, size: int) -> None:
        """Memory that was got before this object watched: `size` bytes at a known address."""
        self._addresses.adopt(address, size)
        self._sizes[address] = size
        self.reserved_bytes += size

    def free(self, address: int) -> int:
        """`cudaFree`: give a range back; its size. KeyError when the address was never handed out."""
        size = self._sizes.pop(address)
        if self.on_call is not None:
            self.on_call("cudaFree", size)
        self.free_calls += 1
        self.reserved_bytes -= size
        self._addresses.give(address, size)
        return size

    def reserve_address(self, size: int) -> int:
        """`cuMemAddressReserve`: a range of addresses without memory behind it."""
        address = self._next_reservation
        self._next_reservation += -(-size // RANGE_BYTES) * RANGE_BYTES
        return address

    def map(self, size: int, pages: int) -> bool:
        """`cuMemCreate` and `cuMemMap` of `size` bytes in `pages` handles; False when they are not there."""
        self.map_calls += pages
        if self.on_call is not None:
            self.on_call("cuMemMap", size)
        if size > self.free_bytes and not self.overcommitted:
            return False
        self.reserved_bytes += size
        return True

    def unmap(self, size: int, pages: int) -> None:
        """`cuMemUnmap` and `cuMemRelease` of `size` bytes in `pages` handles."""
        if self.on_call is not None:
            self.on_call("cuMemUnmap", size)
        self.unmap_calls += pages
        self.reserved_bytes -= size
