"""The memory that PyTorch's CUDA reductions take while they run: a staging buffer and a semaphore a block.

A reduction with few outputs and many inputs is split over several thread blocks, which leave partial results in global
memory. How many follows from shapes, strides and the GPU alone. Source: aten/src/ATen/native/cuda/Reduce.cuh
(setReduceConfig, ReduceConfig::global_memory_size, semaphore_size), unchanged in this from PyTorch 1.8 to 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windtunnel.gpus.gpu import Gpu

MAX_THREADS = 512
WARP = 32
VALUES_PER_THREAD = 4
MIN_VALUES, MAX_VALUES = 16, 256

Dimension = tuple[int, int]
"""Size and stride, in elements."""


def staging(
    shape: Sequence[int],
    strides: Sequence[int],
    reduced: Iterable[int],
    accumulator_bytes: int,
    gpu: Gpu,
    values_per_thread: int = VALUES_PER_THREAD,
) -> tuple[int, int]:
    """Bytes of the staging buffer and of the semaphores of one reduction; (0, 0) where one block an output does it.

    `reduced` are the dimensions that go, `accumulator_bytes` the size of what a thread sums up in (`arg_t`),
    `values_per_thread` the kernel's `vt0`: an input is vectorized only where it is 4.
    """
    gone = set(reduced)
    inner, kept = (_coalesced(shape, strides, [i in gone for i in range(len(shape))], side) for side in (True, False))
    outputs, inputs = _count(kept), _count(inner)
    if outputs * inputs == 0:
        return 0, 0
    along = not kept or (bool(inner) and inner[0][1] < kept[0][1])
    fastest = (inner or kept or [(1, 1)])[0][1] if along else kept[0][1]
    first, second = (inputs, outputs) if along else (outputs, inputs)
    vector = 1
    if fastest == 1 and along and first > 128 and not kept and len(inner) == 1 and values_per_thread >= 4:
        first //= 4
    elif fastest == 1 and not along:
        vector = _output_vector(kept, inner)
        first //= vector
    width, height = _block(first, second, MAX_THREADS // vector)
    step_input, step_output = (width, 1) if along else (1, width)
    per_thread = -(-inputs // step_input)
    if per_thread < min(height * MIN_VALUES, MAX_VALUES):
        return 0, 0
    step_input *= height
    per_thread = -(-inputs // step_input)
    grid = -(-(outputs // vector) // step_output)
    target = gpu.sm_count * (gpu.max_threads_per_sm // (width * height))
    if per_thread < MAX_VALUES or grid > target:
        return 0, 0
    blocks = max(min(-(-target // grid), -(-per_thread // MIN_VALUES)), -(-per_thread // MAX_VALUES))
    if blocks <= 1:
        return 0, 0
    return accumulator_bytes * outputs * blocks * (1 if along else width * vector), 4 * grid


def _count(dimensions: list[Dimension]) -> int:
    total = 1
    for size, _ in dimensions:
        total *= size
    return total


def _coalesced(shape: Sequence[int], strides: Sequence[int], gone: list[bool], side: bool) -> list[Dimension]:
    """The reduced (or kept) dimensions, innermost first, neighbours in memory joined as TensorIterator joins them."""
    chosen = [(strides[i], shape[i]) for i in range(len(shape)) if gone[i] is side and shape[i] != 1]
    found: list[Dimension] = []
    for stride, size in sorted(chosen):
        if found and found[-1][0] * found[-1][1] == stride:
            found[-1] = found[-1][0] * size, found[-1][1]
        else:
            found.append((size, stride))
    return found


def _output_vector(kept: list[Dimension], inner: list[Dimension]) -> int:
    """How many neighbouring outputs a thread makes: the largest of 4, 2 and 1 that divides sizes and strides."""
    vector = 4
    for number in (kept[0][0], *(stride for _, stride in (*kept[1:], *inner))):
        while number % vector:
            vector //= 2
    return vector


def _block(first: int, second: int, most: int) -> tuple[int, int]:
    """Threads of a block along its two dimensions (ReduceConfig::set_block_dimension)."""
    wide, high = (1 << (n.bit_length() - 1) if 0 < n < most else (most if n else 1) for n in (first, second))
    width = min(wide, WARP)
    height = min(high, most // width)
    return min(wide, most // height), height
