"""Launches that CUDA refuses, and how many blocks of a kernel an SM holds.

The codes are those that an H200 gave (tests/conformance/hardware): a configuration that no GPU can run is an invalid
argument there, whatever is wrong with it. Limits: CUDA C++ Programming Guide, "Technical Specifications".
"""

from __future__ import annotations

from typing import NamedTuple

from windtunnel.gpus import Gpu
from windtunnel.seam.cuda_runtime import errors

MOST_THREADS, MOST_Z = 1024, 64
MOST_BLOCKS = (2**31 - 1, 65535, 65535)
RESERVED = 1024
"""Bytes of shared memory that each block takes beside its own, from compute capability 8.0 on."""
MOST_RESIDENT = 32
REGISTERS = 32
"""Of a thread, where a kernel does not say."""
REGISTERS_TOGETHER = 256
"""Registers are given to a warp in pieces of so many."""


class LaunchShape(NamedTuple):
    """What a launch asks for."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    cooperative: bool = False
    """Whether its blocks may wait for each other."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


def refusal(shape: LaunchShape, gpu: Gpu, most_threads: int, static_bytes: int, opted_bytes: int,
            registers: int = 0) -> int:  # fmt: skip
    """CUDA's error for a launch that cannot be, else 0; `opted_bytes` is what cudaFuncSetAttribute allowed, `registers`
    what a thread takes, where that is known."""
    if not shape.blocks or not shape.threads or shape.threads > min(MOST_THREADS, most_threads):
        return errors.INVALID_VALUE
    if shape.block[2] > MOST_Z or any(size > most for size, most in zip(shape.grid, MOST_BLOCKS, strict=True)):
        return errors.INVALID_VALUE
    allowed = max(gpu.shared_memory_per_block_bytes - static_bytes, opted_bytes)
    if shape.shared_bytes > allowed:
        return errors.INVALID_VALUE
    if registers and not resident(shape.threads, 0, registers, gpu):
        return errors.OUT_OF_RESOURCES
    if shape.cooperative and shape.blocks > together(shape, static_bytes, registers or REGISTERS, gpu):
        return errors.COOPERATIVE_TOO_LARGE
    return 0


def together(shape: LaunchShape, static_bytes: int, registers: int, gpu: Gpu) -> int:
    """How many blocks of a launch the whole GPU holds at once."""
    return gpu.sm_count * resident(shape.threads, shape.shared_bytes + static_bytes, registers, gpu)


def resident(threads: int, shared_bytes: int, registers: int, gpu: Gpu) -> int:
    """How many blocks of a kernel one SM holds at once."""
    warps = -(-threads // 32)
    reserved = RESERVED if gpu.compute_capability >= (8, 0) else 0
    room = [MOST_RESIDENT, gpu.max_threads_per_sm // (32 * warps)]
    if shared_bytes or reserved:
        room.append(gpu.shared_memory_per_sm_bytes // (shared_bytes + reserved))
    if registers:
        a_warp = -(-registers * 32 // REGISTERS_TOGETHER) * REGISTERS_TOGETHER
        room.append(gpu.registers_per_sm // (a_warp * warps))
    return max(0, min(room))
