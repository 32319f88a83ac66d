"""Temporary memory of PyTorch's own CUDA kernels, by operator. Each row names its source.

"recorded" are public memory snapshots of real GPUs whose stacks name the kernel that asked; the repositories are in
tests/conformance/memory/README.md. Their sizes are in tests/seam/test_kernel_memory.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from understudy.seam.torch.kernel_memory import NOTHING, VERSION, Call, Need, Row, size_of
from understudy.seam.torch.kernel_reduce import staging

LONG = 8
FLOAT = 4
PAIR = 16
"""A value and its 64-bit place, padded."""
SINGLE_TILE = 2304
"""Pairs of 64-bit keys and values that CUB sorts in one block without memory (recorded: 2048 take 1 byte)."""
ACCUMULATED = {torch.float16: 4, torch.bfloat16: 4, torch.float32: 4, torch.float64: 8}


def accumulator(dtype: torch.dtype) -> int:
    """Bytes of the type in which CUDA kernels sum up values of `dtype` (acc_type)."""
    return ACCUMULATED.get(dtype, LONG if not (dtype.is_floating_point or dtype.is_complex) else dtype.itemsize)


def sort_pairs(count: int, key: int = LONG, value: int = LONG) -> int:
    """CUB's buffer for a radix sort of pairs: the other half of its double buffers, and histograms."""
    return 1 if count <= SINGLE_TILE else count * (key + value) + 6655


def scan(count: int) -> int:
    """CUB's buffer for a prefix sum: a descriptor of 16 bytes for each tile of about 1920 elements."""
    return 1023 + 16 * (-(-count // 1920) + 32)


# ---------------------------------------------------------------------------------------------- reductions


def _dimensions(call: Call, tensor: torch.Tensor) -> Sequence[int]:
    chosen = call.get("dim", call.get("dims"))
    if chosen is None or (isinstance(chosen, (list, tuple)) and not chosen):
        return range(tensor.dim())
    chosen = chosen if isinstance(chosen, (list, tuple)) else (chosen,)
    return [d % tensor.dim() if tensor.dim() else 0 for d in chosen]


def _reduce(call: Call, element: int, vt0: int = 4) -> Need:
    tensor = call.inputs[0]
    if tensor.layout is not torch.strided or tensor.dim() == 0:
        return NOTHING
    found = staging(tensor.shape, tensor.stride(), _dimensions(call, tensor), element, call.gpu, vt0)
    return Need(found) if any(found) else NOTHING


def summing(call: Call) -> Need:
    """Sums, products, means and norms accumulate in `acc_type`; what is summed in another type is converted first."""
    tensor, wanted = call.inputs[0], call.outputs[0].dtype if call.outputs else call.inputs[0].dtype
    low = tensor.dtype in (torch.float16, torch.bfloat16) and wanted == torch.float32
    if tensor.dtype == wanted or low or tensor.layout is not torch.strided:
        return _reduce(call, accumulator(tensor.dtype))
    return Need((tensor.numel() * wanted.itemsize, *_reduce(call, accumulator(wanted)).sizes))


def comparing(call: Call) -> Need:
    """Extremes and truths keep the input's own type; with places they are those of `indexing`."""
    return _reduce(call, call.inputs[0].element_size() if len(call.outputs) == 1 else PAIR)


def indexing(call: Call) -> Need:
    """Extremes with their place: a value and a 64-bit index, padded."""
    return _reduce(call, PAIR)


def welford(call: Call) -> Need:
    """Variances: mean, second moment and two counts; two values a thread."""
    return _reduce(call, 32 if call.inputs[0].dtype == torch.float64 else 16, 2)


def log_sum_exp(call: Call) -> Need:
    """The exponentials of all elements, and their maxima."""
    tensor = call.inputs[0]
    return Need((size_of(tensor), size_of(call.outputs[0])))


def foreach_norm(call: Call) -> Need:
    """One partial norm a tensor and chunk of 65536 elements."""
    tensors = call.inputs
    chunks = max((-(-t.numel() // 65536) for t in tensors), default=0)
    return Need((len(tensors) * chunks * max(map(accumulator, {t.dtype for t in tensors}), default=0),))


# ---------------------------------------------------------------------------------------------- indices


def embedding_backward(call: Call) -> Need:
    """Sorted and original indices, four lists of segments, and one float32 row of partial sums an index."""
    grad, indices = call.inputs[:2]
    count, width = indices.numel(), grad.shape[-1]
    if count <= 3072 and not call.get("scale_grad_by_freq"):
        return NOTHING
    lists = 6 + bool(call.get("scale_grad_by_freq"))
    row = accumulator(grad.dtype)
    return Need((*(LONG * count,) * lists, LONG, LONG, count * width * row))


def accumulate(call: Call) -> Need:
    """index_put with accumulate=True: a linear index, its sorted copy, two orders, and CUB's buffer."""
    if not call.get("accumulate"):
        return NOTHING
    indices = [t for t in call.get("indices") if isinstance(t, torch.Tensor)]
    if any(t.dtype in (torch.bool, torch.uint8) for t in indices):
        return Need(unsure=2 * size_of(call.inputs[0]))
    count = math.prod(torch.broadcast_shapes(*(t.shape for t in indices)))
    return Need((*(LONG * count,) * 5, sort_pairs(count)))


def mask_index(call: Call) -> Need:
    """A boolean index becomes the positions of its true elements, one list a dimension."""
    masks = [t for t in call.inputs[1:] if t.dtype in (torch.bool, torch.uint8)]
    if not masks:
        return NOTHING
    rows = call.outputs[0].numel() // max(1, math.prod(call.inputs[0].shape[masks[0].dim() :]))
    return Need(tuple(LONG * rows * mask.dim() for mask in masks))


def masked_scatter(call: Call) -> Need:
    """The prefix sum of the mask, as 64-bit numbers."""
    count = call.inputs[0].numel()
    return Need((LONG * count, scan(count)))


def nonzero(call: Call) -> Need:
    """The count, and CUB's buffers for counting and selecting."""
    return Need((4, scan(call.inputs[0].numel())))


# ---------------------------------------------------------------------------------------------- sorting and sampling


def sorting(call: Call) -> Need:
    """In place up to 4096 elements a row; above, each segment by CUB, or all at once with segment numbers."""
    tensor = call.inputs[0]
    along = call.get("dim", -1)
    length = tensor.shape[along] if tensor.dim() else 1
    if length <= 4096 or tensor.numel() == 0:
        return NOTHING
    if tensor.numel() // length < 128:
        return Need((LONG * length, sort_pairs(length, tensor.element_size())))
    count = tensor.numel()
    return Need((LONG * count, LONG * count, sort_pairs(count, tensor.element_size())))


def topk(call: Call) -> Need:
    """A selection in place; long rows are sorted or selected by several blocks, with buffers of their size."""
    tensor = call.inputs[0]
    length = tensor.shape[call.get("dim", -1)] if tensor.dim() else 1
    return Need(unsure=size_of(tensor) + LONG * tensor.numel()) if length > 4096 else NOTHING


def unique(call: Call) -> Need:
    """A sorted copy, the order before, and flags and their sums where an inverse or counts are asked for."""
    tensor = call.inputs[0]
    count = tensor.numel()
    return Need((size_of(tensor), LONG * count, sort_pairs(count, tensor.element_size())), unsure=2 * LONG * count)


def scanning(call: Call) -> Need:
    """A prefix sum over all elements is CUB's; along one dimension of several it needs nothing."""
    tensor = call.inputs[0]
    return Need((scan(tensor.numel()),)) if tensor.numel() == tensor.shape[call.get("dim", 0)] else NOTHING


def multinomial(call: Call) -> Need:
    """With replacement the normalized and the summed distributions; without, an exponential sample of each weight."""
    size = size_of(call.inputs[0])
    return Need((size, size) if call.get("replacement") else (size,))


def permutation(call: Call) -> Need:
    """Random keys, their sorted copy, the numbers to permute, and CUB's buffer."""
    count = call.outputs[0].numel()
    return Need((LONG * count, LONG * count, size_of(call.outputs[0]), sort_pairs(count))) if count else NOTHING


# ---------------------------------------------------------------------------------------------- normalization


def group_norm(call: Call) -> Need:
    """Two factors an image and channel."""
    images, channels = call.inputs[0].shape[:2]
    size = images * channels * accumulator(call.inputs[0].dtype)
    return Need((size, size))


def group_norm_backward(call: Call) -> Need:
    """Two sums and a factor an image and channel, two factors an image and group."""
    grad = call.inputs[0]
    images, channels = grad.shape[:2]
    size = images * channels * accumulator(grad.dtype)
    groups = images * int(call.get("group", 1)) * accumulator(grad.dtype)
    return Need((size, size, size, groups, groups))


def layer_norm_backward(call: Call) -> Need:
    """Partial sums for weight and bias where there are very many short rows (from 2.8 on)."""
    tensor = call.inputs[1]
    width = math.prod(call.get("normalized_shape", ()))
    rows = tensor.numel() // max(1, width)
    if VERSION < (2, 8) or rows <= 64 * 1024 or width // 32 >= call.gpu.sm_count // 2:
        return NOTHING
    blocks = min(256, -(-rows // 256))
    return Need((2 * blocks * width * accumulator(tensor.dtype),), unsure=2 * blocks * width * FLOAT)


NATIVE = "aten/src/ATen/native/cuda/"

ROWS: tuple[Row, ...] = (
    Row(("sum", "mean", "prod", "nansum", "linalg_vector_norm", "norm"), summing,
        NATIVE + "Reduce.cuh, ReduceMomentKernel.cu, ReduceSumProdKernel.cu, ReduceNormKernel.cu; recorded: "
        "Wedsonlin/assignment2-systems, JasperSolt/EoR_NN"),
    Row(("amax", "amin", "max", "min", "any", "all"), comparing,
        NATIVE + "ReduceMaxValuesKernel.cu, ReduceLogicKernel.cu; recorded: JasperSolt/EoR_NN (any)"),
    Row(("argmax", "argmin"), indexing, NATIVE + "ReduceArgMaxKernel.cu, ReduceArgMinKernel.cu"),
    Row(("var", "std", "var_mean", "std_mean"), welford, NATIVE + "ReduceMomentKernel.cu (WelfordData, vt0 of 2)"),
    Row(("logsumexp",), log_sum_exp, "aten/src/ATen/native/ReduceOps.cpp (logsumexp_out_impl)"),
    Row(("_foreach_norm", "_foreach_max", "_foreach_powsum"), foreach_norm, NATIVE + "ForeachReduceOp.cu"),
    Row(("embedding_dense_backward", "_embedding_bag_dense_backward"), embedding_backward,
        NATIVE + "Embedding.cu, EmbeddingBackwardKernel.cu"),
    Row(("index_put", "_index_put_impl", "_unsafe_index_put"), accumulate,
        NATIVE + "Indexing.cu (index_put_with_sort_kernel); recorded: Wedsonlin/assignment2-systems"),
    Row(("index", "_unsafe_index", "masked_select"), mask_index, NATIVE + "IndexKernel.cpp, Nonzero.cu"),
    Row(("masked_scatter",), masked_scatter, NATIVE + "IndexKernel.cpp (masked_scatter_cuda)"),
    Row(("nonzero",), nonzero, NATIVE + "Nonzero.cu (nonzero_cuda_out_impl)"),
    Row(("sort", "argsort"), sorting, NATIVE + "Sort.cpp, SortStable.cu", exact=False),
    Row(("topk", "kthvalue", "median", "mode", "nanmedian"), topk, NATIVE + "TensorTopK.cu, Sorting.cu", exact=False),
    Row(("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"), unique,
        NATIVE + "UniqueCub.cu, Unique.cu", exact=False),
    Row(("cumsum", "cumprod", "logcumsumexp"), scanning, NATIVE + "ScanUtils.cuh (scan_dim)", exact=False),
    Row(("multinomial",), multinomial, NATIVE + "MultinomialKernel.cu; aten/src/ATen/native/Distributions.cpp"),
    Row(("randperm",), permutation, NATIVE + "Randperm.cu"),
    Row(("native_group_norm",), group_norm, NATIVE + "group_norm_kernel.cu (GroupNormKernelImplInternal)"),
    Row(("native_group_norm_backward",), group_norm_backward, NATIVE + "group_norm_kernel.cu"),
    Row(("native_layer_norm_backward",), layer_norm_backward, NATIVE + "layer_norm_kernel.cu", exact=False),
)  # fmt: skip
"""Operators' names without namespace and without the underscore of an in-place form."""
