"""Sorts of rows and `topk`, as PyTorch starts them (aten/src/ATen/native/cuda: Sort.cpp, Sort.cu, TensorTopK.cu).

- Rows up to `IN_A_WARP` are sorted in place, 32 elements a warp.
- Rows up to `IN_A_BLOCK`, padded to one of `PADDED`, are sorted by a block each, four bits a pass. However many rows
  there are, those that run at once take as long: a start and so much for each pass.
- Longer rows, at least `SEGMENTS` of them, have a block each as well, which goes through memory with six bits a pass
  (CUB's segmented radix sort). Fewer ones are sorted together, twice: by their values and by their rows.
- A single row, or one of a million elements, is a radix sort of the whole device, eight bits a pass (Adinets and
  Merrill, Onesweep, arXiv 2206.01784).
- `topk` has a block for each row, which finds the place of the k-th element two bits a pass, and sorts what it found.

The constants were set by an H100's and an H200's kernels (`make hardware`), which they meet within a factor of two at
worst and a quarter for rows that a block sorts. Off those cards they were held to sorts of 1,024 to 32,768 columns of
an RTX 3090 (github.com/linkedin/Liger-Kernel, sparsemax) and to `topk` on an L20 (intel/torch-xpu-ops#3369).
"""

from __future__ import annotations

from math import ceil, prod

from windtunnel.cost.cache import missed
from windtunnel.cost.families.problem import Problem

IN_A_WARP, IN_A_BLOCK = 32, 4096
PADDED = (128, 1024, 2048, 4096)
WARP_CYCLES = 3.4
"""Of a padded element and each of its bytes."""
IN_FLIGHT = 4
"""Elements that a multiprocessor sorts at once, for each of its threads."""
START_CYCLES, PASS_CYCLES = 25_700.0, 5_445.0
"""Of the rows that run at once: their loads and stores, and each of the passes."""
SEGMENTS, LARGE = 128, 1_000_000
SEGMENT_BITS, SEGMENT_CYCLES = 6, 3.6
"""Bits of a pass, and cycles of an element in a pass of the one block that has its row."""
DEVICE_CYCLES, DEVICE_PASSES = 3.4, 4
"""Cycles of an element in a pass of the whole device's sort, and its fewest passes."""
TOGETHER_US = 200.0
"""What sorting a few long rows together takes beside two sorts of the device."""
INDEX_BYTES = 8

SELECT_START, SELECT_WARP, SELECT_ELEMENT = 50.0, 11.0, 0.2
"""Cycles of a pass of `topk` over a row: its own, those of each warp of its block, those of each element."""
SELECT_BITS = 2
ORDER_US, SHARED_US = 20.0, 50.0
"""The sort of what was selected, and what blocks need that share a row, since there are fewer rows than
multiprocessors, or that have long ones."""
SHARED_FROM = 5000
"""The shortest row that several blocks share where there are fewer than 200 (`should_use_multiblock`)."""
SELECT_READS = 6
"""How often such rows are read again, four digits and the results, as far as L2 does not hold them (`mbtopk`)."""
BAND = 0.4
"""Assumed, off the cards whose kernels were measured."""


def rows_of(problem: Problem) -> tuple[int, int]:
    """How many rows are sorted, and their length."""
    shape = problem.inputs[0] if problem.inputs else ()
    if not prod(shape) or not shape:
        return 0, 0
    whole = "unique" in problem.name or problem.name == "randperm"
    dim = int(dict(problem.signature.detail).get("dim", -1))
    length = prod(shape) if whole else shape[dim]
    return prod(shape) // length, length


def moved_bytes(problem: Problem, rows: int, length: int) -> float:
    """What a radix sort moves: values for the histograms, then values and places in each pass."""
    if length <= IN_A_BLOCK:
        return 0.0
    item = problem.item_bytes
    if rows >= SEGMENTS and length < LARGE:
        return float(rows * length * passes(8 * item, SEGMENT_BITS) * (3 * item + 2 * INDEX_BYTES))
    return float(rows * length * (item + item * 2 * (item + INDEX_BYTES)))


def selected_bytes(problem: Problem, rows: int, length: int) -> float:
    """What `topk` reads again from memory."""
    size = float(problem.item_bytes * rows * length)
    return SELECT_READS * size * missed(problem.gpu, size) if length >= SHARED_FROM else 0.0


def passes(bits: int, of: int) -> int:
    return ceil(bits / of)


def sort_ns(problem: Problem, rows: int, length: int) -> float:
    """What the multiprocessors need to sort so many rows."""
    gpu, bits = problem.gpu, 8 * problem.item_bytes
    if length <= 1:
        return 0.0
    if length <= IN_A_WARP:
        return gpu.spread_ns(WARP_CYCLES * problem.item_bytes * rows * IN_A_WARP)
    if length <= IN_A_BLOCK:
        padded = next(size for size in PADDED if length <= size)
        waves = rows * padded / (IN_FLIGHT * gpu.max_threads_per_sm * gpu.sm_count)
        return 1000.0 * max(0.5, waves) * (START_CYCLES + PASS_CYCLES * passes(bits, 4)) / gpu.cycles_per_us
    if rows >= SEGMENTS and length < LARGE:
        most = ceil(rows / gpu.sm_count) * length
        return 1000.0 * SEGMENT_CYCLES * passes(bits, SEGMENT_BITS) * most / gpu.cycles_per_us
    device = gpu.spread_ns(DEVICE_CYCLES * max(DEVICE_PASSES, passes(bits, 8)) * rows * length)
    return device if rows == 1 or length >= LARGE else 2.0 * device + 1000.0 * TOGETHER_US


def topk_ns(problem: Problem, rows: int, length: int) -> float:
    """What the multiprocessors need to find the largest elements of so many rows."""
    gpu = problem.gpu
    warps = min(32, ceil(length / 32))
    each = (SELECT_START + SELECT_WARP * warps + SELECT_ELEMENT * length) * passes(8 * problem.item_bytes, SELECT_BITS)
    if length >= SHARED_FROM:
        return 1000.0 * (ORDER_US + SHARED_US) + gpu.spread_ns(rows * each)
    return 1000.0 * (ORDER_US + each / gpu.cycles_per_us * max(1.0, rows / gpu.sm_count))
