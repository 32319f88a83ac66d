"""Temporary storage of CUB, the library under PyTorch's sorts, scans and selections: bytes by count, types and GPU.

Every function of CUB asks for one buffer, made of parts that begin at multiples of 256 bytes, and 255 bytes more to
align the first (AliasTemporaries). The parts follow from tiles, whose sizes are tuned by compute capability. Source:
NVIDIA/cccl, cub/cub/device/dispatch/ (dispatch_radix_sort.cuh, dispatch_scan.cuh, dispatch_reduce.cuh,
dispatch_select_if.cuh, dispatch_scan_by_key.cuh, tuning/) and cub/cub/agent/single_pass_scan_operators.cuh; sizes
recorded on real GPUs are in tests/seam/test_kernel_cub.py.
"""

from __future__ import annotations

from windtunnel.gpus.gpu import Gpu

LONG = 8
SHARED_BYTES = 48 << 10
PADDING = 32
"""Descriptors before the first tile's (TILE_STATUS_PADDING)."""
DIGITS = 256
"""Values of a radix sort's digit, 8 bits."""
PORTION = (1 << 28) - 1
"""Items that a radix sort counts at once, at most."""
REDUCE_THREADS, REDUCE_ITEMS, SUBSCRIPTION = 256, 16, 5


def buffer(*parts: int) -> int:
    """The bytes of a buffer with these parts."""
    return sum(-(-part // 256) * 256 for part in parts) + 255


def bits_of(largest: int) -> int:
    """The bits that a sort of keys up to `largest` looks at (get_num_bits of aten/src/ATen/cuda/cub.h)."""
    return max(1, largest.bit_length())


def _tile(threads: int, items: int, size: int) -> int:
    """Elements of a block by its nominal tuning for 4 bytes, where registers are scarce (RegBoundScaling)."""
    items = max(1, items * 4 // max(4, size))
    return items * min(threads, -(-(SHARED_BYTES // (size * items)) // 32) * 32)


# ---------------------------------------------------------------------------------------------- sorts


def radix_sort(count: int, key: int, value: int, gpu: Gpu, bits: int = 0) -> int:
    """A sort of keys (`value` 0) or pairs, sizes in bytes, on `bits` of the keys (0: all).

    1 where one block does it. Keys below 4 bytes on GPUs before 9.0 need the spine of `spine_bytes` as well.
    """
    if count <= _tile(256, 19, max(key, value)):
        return 1
    if not one_sweep(key, gpu):
        return buffer(0, count * key, count * value)
    tile = _tile(*_onesweep(key, value, gpu), max(key, value))
    portion = PORTION // tile * tile
    portions = -(-count // portion)
    passes = -(-(bits or 8 * key) // 8)
    spare = (count * key, count * value) if passes > 1 else (0, 0)
    lookback = -(-min(count, portion) // tile) * DIGITS * 4
    return buffer(portions * passes * DIGITS * LONG, lookback, *spare, portions * passes * 4)


def one_sweep(key: int, gpu: Gpu) -> bool:
    """Whether keys of that size are sorted by the one-sweep algorithm."""
    return key >= 4 or gpu.compute_capability >= (9, 0)


def spine_bytes(gpu: Gpu) -> int:
    """The most that block histograms of the older sort take: 128 digits of 8 bytes a block, at most 4 a processor."""
    return 4 * SUBSCRIPTION * gpu.sm_count * 128 * LONG


def _onesweep(key: int, value: int, gpu: Gpu) -> tuple[int, int]:
    """Threads and nominal items of a one-sweep block; offsets are of 64 bits, as PyTorch calls it."""
    capability = gpu.compute_capability
    if capability < (7, 0):
        return 256, 29
    if capability < (8, 0):
        return 256, 46 if key == value == 4 else 23
    if capability < (9, 0):
        return 384, 17 if key == 4 and value else 21
    if key == 4:
        return 384, 19 if not value else 17 if value < LONG else 29
    if key == LONG:
        return 384, 24 if value >= LONG else 30
    if not value:
        return 512, 19
    return (384, 18) if key == 1 else (512, 23)


def segmented_sort(count: int, key: int, value: int) -> int:
    """A sort of many segments, each by one block: the other half of the double buffers."""
    return buffer(count * key, count * value)


# ---------------------------------------------------------------------------------------------- scans and reductions


def scan(count: int, size: int, single_word: bool = True) -> int:
    """A prefix sum over elements of `size` bytes, by an operation of the caller's: a descriptor a tile.

    A descriptor is a value and its state in one word; in three arrays where the type is no number of C++'s own (half).
    """
    items = max(1, min(15 * 4 // size, 30))
    tiles = -(-count // (128 * items)) + PADDING
    return buffer(tiles * 2 * size) if single_word else buffer(buffer(tiles * 4, tiles * size, tiles * size))


def scan_by_key(count: int, key: int, size: int) -> int:
    """A prefix sum that begins anew with each key: descriptors of value, offset and state, and each tile's last key."""
    tiles = -(-count // (256 * 9))
    word = 1 << (size + 4).bit_length()
    return buffer((tiles + PADDING) * word, key * (tiles + 1))


def reduce(count: int, gpu: Gpu, size: int = 4) -> int:
    """A reduction of everything to one value of `size` bytes: a partial result for each block that may run."""
    if count <= REDUCE_THREADS * max(1, REDUCE_ITEMS * 4 // size):
        return 1
    return buffer(SUBSCRIPTION * gpu.sm_count * (gpu.max_threads_per_sm // REDUCE_THREADS) * size)


def select(count: int, gpu: Gpu) -> int:
    """The places of flagged elements, as 64-bit numbers: a descriptor of 8 bytes a tile."""
    capability = gpu.compute_capability
    tile = 128 * 5 if capability < (8, 0) else 384 * 6 if capability < (9, 0) else 384 * 11
    return buffer((-(-count // tile) + PADDING) * 8)
