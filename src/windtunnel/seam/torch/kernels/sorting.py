"""Sorting and selecting: the memory that CUDA's kernels take for `sort`, `topk`, `median`, `mode` and `unique`.

"recorded" are public memory snapshots of real GPUs whose stacks name the kernel that asked; the repositories are in
tests/conformance/memory/README.md. Their sizes are in tests/seam/test_kernel_memory.py.
"""

from __future__ import annotations

import torch

from windtunnel.seam.torch.scratch import cub
from windtunnel.seam.torch.scratch.native import LONG, NATIVE, length_of
from windtunnel.seam.torch.scratch.need import NOTHING, Demand, Need, Row, size_of
from windtunnel.seam.torch.tags import VERSION


def sorting(call: Demand) -> Need:
    """A row's places; above 4096 elements a row what `_long_sort` takes, and copies of what is not contiguous."""
    tensor, length = call.inputs[0], length_of(call)
    if tensor.numel() == 0 or tensor.dim() == 0:
        return NOTHING
    if length <= 4096:
        return Need((LONG * length,))
    found = _long_sort(tensor.numel(), length, tensor.element_size(), call)
    if tensor.stride(call.get("dim", -1)) == 1:
        return found
    copies = (size_of(tensor), size_of(tensor), LONG * tensor.numel())
    return Need((*copies, *found.sizes), found.unsure)


def _long_sort(count: int, length: int, key: int, call: Demand) -> Need:
    """One sort a row, with its places; all at once by row and place; or each row by a block of threads."""
    rows = count // length
    pairs = cub.radix_sort(count, key, LONG, call.gpu)
    unsure = 0 if cub.one_sweep(key, call.gpu) else cub.spine_bytes(call.gpu)
    if rows == 1 or length >= 1_000_000:
        return Need((LONG * length, cub.radix_sort(length, key, LONG, call.gpu)), unsure)
    if rows < 128:
        return Need((LONG * count, LONG * count, count * key, pairs), unsure)
    return Need((LONG * count, cub.segmented_sort(count, key, LONG)))


MULTIBLOCK = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800), (1 << 32, 400))
"""Up to so many rows, `topk` lets several blocks work on a row from this length on (pytorch#74267)."""
BLOCK = 256
ONE_HISTOGRAM = (2, 10)
"""The first PyTorch in which a kernel of its own adds up what blocks count, without semaphores (pytorch#164459)."""


def topk(call: Demand) -> Need:
    """What several blocks of a row tell each other; nothing where one block does it. Then a sort of what was found."""
    tensor, length = call.inputs[0], length_of(call)
    rows = tensor.numel() // max(1, length)
    if length < next(least for most, least in MULTIBLOCK if rows <= most) or tensor.dim() == 0:
        return NOTHING
    items = -(-tensor.numel() // (call.gpu.sm_count * (call.gpu.registers_per_sm // (40 * BLOCK)) * BLOCK))
    blocks = rows * -(-length // (max(4, min(items, 64)) * BLOCK))
    key = tensor.element_size()
    counts = (4 * blocks, 4 * blocks, cub.scan_by_key(blocks, 4, 4))
    told = 4 * BLOCK * rows if VERSION >= ONE_HISTOGRAM else 4 * rows
    return Need((rows * key, told, 8 * rows, 2 * rows * max(4, key), 2 * BLOCK * blocks, *counts))


def median(call: Demand) -> Need:
    """The median of everything sorts a copy; along a dimension a selection needs nothing."""
    tensor = call.inputs[0]
    count, key = tensor.numel(), tensor.element_size()
    if call.get("dim") is not None or call.get("k") is not None or not count:
        return NOTHING
    found = Need((LONG * count,)) if count <= 4096 else _long_sort(count, count, key, call)
    return Need((count * key, LONG * count, *found.sizes), found.unsure)


def mode(call: Demand) -> Need:
    """Long rows are sorted by Thrust, whose buffers are not known: as much again may be taken."""
    tensor = call.inputs[0]
    return Need(unsure=size_of(tensor) + LONG * tensor.numel()) if length_of(call) > 2048 else NOTHING


def unique(call: Demand) -> Need:
    """The largest of three moments (sorting, numbering, packing), less what is then returned."""
    tensor = call.inputs[0]
    count, size = tensor.numel(), size_of(tensor)
    if tensor.dtype == torch.bool or not count:
        return NOTHING
    places = LONG * count if call.get("return_inverse") else 0
    sort = cub.radix_sort(count, tensor.element_size(), LONG if places else 0, call.gpu)
    counts = LONG * count if call.get("return_counts") else 0
    most = max(size + 2 * places + sort, size + 3 * places, 2 * size + 2 * places + counts)
    unsure = 0 if cub.one_sweep(tensor.element_size(), call.gpu) else cub.spine_bytes(call.gpu)
    return Need((max(0, most - sum(map(size_of, call.outputs))),), unsure)


def unique_rows(call: Demand) -> Need:
    """Places and their order, sorted by Thrust; its buffers may be as large again."""
    size = LONG * call.inputs[0].numel()
    return Need(unsure=size_of(call.inputs[0]) + 2 * size)


SCRATCH = (
    Row(("sort", "argsort"), sorting, NATIVE + "Sort.cpp (sort_cuda_kernel), SortStable.cu"),
    Row(("topk",), topk, NATIVE + "TensorTopK.cu (mbtopk::launch, should_use_multiblock); recorded: "
        "Constructor-Sun/code_location"),
    Row(("median", "nanmedian", "kthvalue"), median, NATIVE + "Sorting.cpp (median_impl, median_with_indices_impl)"),
    Row(("mode",), mode, NATIVE + "TensorModeKernel.cpp", exact=False),
    Row(("_unique", "_unique2"), unique, NATIVE + "UniqueCub.cu (UniqueCub, compute_unique)", exact=False),
    Row(("unique_dim", "unique_consecutive", "unique_dim_consecutive"), unique_rows, NATIVE + "Unique.cu",
        exact=False),
)  # fmt: skip
"""Operators' names without namespace and without the underscore of an in-place form."""
