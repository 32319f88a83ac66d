"""The bytes of graphs' memory pools: what a capture allocates lies where the allocator placed it.

A block that a capture drops and another one gets again, in the same graph or in one that shares its pool, is the same
memory, so a replay overwrites what a replay on a GPU would.
"""

from __future__ import annotations

import mmap
import sys

import torch

from windtunnel.machine.device import Device
from windtunnel.machine.memory.blocks import UNMAPPED, Block, PoolId

MAP_NORESERVE = 0x4000
"""Linux's value (asm-generic/mman-common.h); Python has a name for it since 3.13."""


class PoolBytes:
    """The memory of the pool that a capture allocates from, as it was before the capture."""

    def __init__(self, device: Device, pool_id: PoolId) -> None:
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []
        for segment in device.allocator.segments.values():
            if segment.memory is not None and segment.shelf.pool.pool_id == pool_id:
                for block in segment.blocks():
                    if block.state != UNMAPPED:
                        found = bytes_of(block, block.size)
                        self._before.append((found, found.clone()))

    def give_back(self) -> None:
        """What earlier graphs left in the pool is there again."""
        while self._before:
            found, before = self._before.pop()
            found.copy_(before)


def bytes_of(block: Block, size: int) -> torch.Tensor:
    """The first `size` bytes of a block, as a tensor of bytes that shares them."""
    segment = block.segment
    if segment.memory is None:
        segment.memory = _reserve(segment.size)
    return torch.frombuffer(segment.memory, dtype=torch.uint8, count=size, offset=block.address - segment.address)


def _reserve(size: int) -> mmap.mmap:
    """Zeros that take memory where they are written; an expandable segment is larger than what it will hold."""
    if sys.platform != "linux":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
