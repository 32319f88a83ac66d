"""The part of the CUDA driver that hands out device memory: sizes, counts and addresses, no bytes.

A `DeviceMemory` stands for one GPU's memory as `cudaMalloc`, `cudaFree` and the virtual memory calls see it. The
caching allocator of a process is one customer; a context, libraries and other processes are `occupied` bytes.
"""

from __future__ import annotations

from typing import NamedTuple

MIB = 1 << 20
PAGE_BYTES = 2 * MIB
"""Granularity of device memory and of large addresses (`cuMemGetAllocationGranularity` says 2 MiB on all GPUs)."""

_FIRST_ADDRESS = 0x7F00_0000_0000
_ARENA_BYTES = 1 << 41
_RESERVED_OFFSET = 1 << 40


class MemoryInfo(NamedTuple):
    """What `cudaMemGetInfo` says, in bytes."""

    free: int
    total: int


class DeviceMemory:
    """Memory of one GPU. Addresses are deterministic, 2 MiB aligned, unique per device, in the 0x7f... range.

    `total_bytes` is what `cudaMemGetInfo` calls total, `occupied_bytes` what is used by anybody but the customers of
    this object (the CUDA context, libraries, other processes); it may be changed at any time.
    """

    __slots__ = (
        "_holes",
        "_next_address",
        "_next_reservation",
        "_sizes",
        "free_calls",
        "malloc_calls",
        "map_calls",
        "occupied_bytes",
        "reserved_bytes",
        "total_bytes",
        "unmap_calls",
    )

    def __init__(self, total_bytes: int, occupied_bytes: int = 0, device: int = 0) -> None:
        self.total_bytes = total_bytes
        self.occupied_bytes = occupied_bytes
        self.reserved_bytes = 0
        self.malloc_calls = 0
        self.free_calls = 0
        self.map_calls = 0
        self.unmap_calls = 0
        base = _FIRST_ADDRESS + device * 2 * _ARENA_BYTES
        self._next_address = base
        self._next_reservation = base + _RESERVED_OFFSET
        self._sizes: dict[int, int] = {}
        self._holes: dict[int, list[int]] = {}

    @property
    def free_bytes(self) -> int:
        """Bytes that a `cudaMalloc` could still get."""
        return max(0, self.total_bytes - self.occupied_bytes - self.reserved_bytes)

    def info(self) -> MemoryInfo:
        """What `cudaMemGetInfo` returns."""
        return MemoryInfo(self.free_bytes, self.total_bytes)

    def malloc(self, size: int) -> int | None:
        """`cudaMalloc`: the address of `size` fresh bytes (rounded up to 2 MiB), or None when they are not there.

        The most recently freed range of the same size is used again first, as the driver does.
        """
        self.malloc_calls += 1
        size = -(-size // PAGE_BYTES) * PAGE_BYTES
        if size > self.free_bytes:
            return None
        holes = self._holes.get(size)
        if holes:
            address = holes.pop()
        else:
            address = self._next_address
            self._next_address += size
        self._sizes[address] = size
        self.reserved_bytes += size
        return address

    def free(self, address: int) -> int:
        """`cudaFree`: give a range back; its size. KeyError when the address was never handed out."""
        size = self._sizes.pop(address)
        self.free_calls += 1
        self.reserved_bytes -= size
        self._holes.setdefault(size, []).append(address)
        return size

    def reserve_address(self, size: int) -> int:
        """`cuMemAddressReserve`: a range of addresses without memory behind it."""
        address = self._next_reservation
        self._next_reservation += -(-size // PAGE_BYTES) * PAGE_BYTES
        return address

    def map(self, size: int, pages: int) -> bool:
        """`cuMemCreate` and `cuMemMap` of `size` bytes in `pages` handles; False when they are not there."""
        self.map_calls += pages
        if size > self.free_bytes:
            return False
        self.reserved_bytes += size
        return True

    def unmap(self, size: int, pages: int) -> None:
        """`cuMemUnmap` and `cuMemRelease` of `size` bytes in `pages` handles."""
        self.unmap_calls += pages
        self.reserved_bytes -= size
