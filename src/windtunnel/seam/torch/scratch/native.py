"""Temporary memory of PyTorch's own CUDA kernels, by operator. Each row names its source.

"recorded" are public memory snapshots of real GPUs whose stacks name the kernel that asked; the repositories are in
tests/conformance/memory/README.md. Their sizes are in tests/seam/test_kernel_memory.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from windtunnel.seam.torch.scratch import cub
from windtunnel.seam.torch.scratch.need import NOTHING, Demand, Need, Row, size_of
from windtunnel.seam.torch.scratch.reduce import staging
from windtunnel.seam.torch.tags import VERSION

LONG = 8
MEAN = 1
"""Reduction.Mean, what losses do unless told otherwise; 0 is none."""
PAIR = 16
"""A value and its 64-bit place, padded."""
ACCUMULATED = {torch.float16: 4, torch.bfloat16: 4, torch.float32: 4, torch.float64: 8}


def accumulator(dtype: torch.dtype) -> int:
    """Bytes of the type in which CUDA kernels sum up values of `dtype` (acc_type)."""
    return ACCUMULATED.get(dtype, LONG if not (dtype.is_floating_point or dtype.is_complex) else dtype.itemsize)


# ---------------------------------------------------------------------------------------------- reductions


def _dimensions(call: Demand, tensor: torch.Tensor) -> Sequence[int]:
    chosen = call.get("dim", call.get("dims"))
    if chosen is None or (isinstance(chosen, (list, tuple)) and not chosen):
        return range(tensor.dim())
    chosen = chosen if isinstance(chosen, (list, tuple)) else (chosen,)
    return [d % tensor.dim() if tensor.dim() else 0 for d in chosen]


def _reduce(call: Demand, element: int, vt0: int = 4) -> Need:
    tensor = call.inputs[0]
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.dim() == 0:
        return NOTHING
    found = staging(tensor.shape, tensor.stride(), _dimensions(call, tensor), element, call.gpu, vt0)
    return Need(found) if any(found) else NOTHING


def summing(call: Demand) -> Need:
    """Sums, products, means and norms accumulate in `acc_type`; what is summed in another type is converted first."""
    tensor, wanted = call.inputs[0], call.outputs[0].dtype if call.outputs else call.inputs[0].dtype
    low = tensor.dtype in (torch.float16, torch.bfloat16) and wanted == torch.float32
    if tensor.dtype == wanted or low or tensor.layout is not torch.strided:
        return _reduce(call, accumulator(tensor.dtype))
    return Need((tensor.numel() * wanted.itemsize, *_reduce(call, accumulator(wanted)).sizes))


def comparing(call: Demand) -> Need:
    """Extremes and truths keep the input's own type; with places they are those of `indexing`.

    The truth of one element alone is made by a conversion, and copied.
    """
    if call.name in ("aten::any", "aten::all") and call.inputs[0].numel() == 1:
        return NOTHING if call.inputs[0].dtype is torch.bool else Need((1,))
    return _reduce(call, call.inputs[0].element_size() if len(call.outputs) == 1 else PAIR)


def indexing(call: Demand) -> Need:
    """Extremes with their place: a value and a 64-bit index, padded."""
    return _reduce(call, PAIR)


def welford(call: Demand) -> Need:
    """Variances: mean, second moment and two counts; two values a thread."""
    return _reduce(call, 32 if call.inputs[0].dtype == torch.float64 else 16, 2)


def log_sum_exp(call: Demand) -> Need:
    """The maxima, the exponentials of all elements, and what their sum takes."""
    return Need((size_of(call.outputs[0]), size_of(call.inputs[0]), *summing(call).sizes))


def foreach_norm(call: Demand) -> Need:
    """One partial norm a tensor and chunk of 65536 elements."""
    tensors = call.inputs
    chunks = max((-(-t.numel() // 65536) for t in tensors), default=0)
    return Need((len(tensors) * chunks * max(map(accumulator, {t.dtype for t in tensors}), default=0),))


# ---------------------------------------------------------------------------------------------- losses


def reduced_loss(call: Demand) -> Need:
    """The loss of each element, before it is reduced."""
    shapes = [tensor.shape for tensor in call.inputs[:2]]
    count = math.prod(torch.broadcast_shapes(*shapes))
    return Need((count * call.inputs[0].element_size(),)) if call.get("reduction", MEAN) else NOTHING


def reduced_apart(call: Demand) -> Need:
    """The reduced loss, before it is copied to where the loss of each element was."""
    return Need((call.inputs[0].element_size(),)) if call.get("reduction", MEAN) else NOTHING


def margin_loss(call: Demand) -> Need:
    """The loss of each sample, before they are reduced."""
    tensor = call.inputs[0]
    reduced = call.get("reduction", MEAN) and tensor.dim() > 1
    return Need((tensor.shape[0] * tensor.element_size(),)) if reduced else NOTHING


def in_order(call: Demand) -> Need:
    """Contiguous copies of tensors that are not, expanded gradients among them."""
    return Need(tuple(size_of(one) for one in call.inputs if one.layout is torch.strided and not one.is_contiguous()))


def softmax_backward(call: Demand) -> Need:
    """The product of gradient and result, in order."""
    return Need((*in_order(call).sizes, size_of(call.inputs[1])))


def complex_to_real(call: Demand) -> Need:
    """cuFFT writes over its input, which is copied before; a second copy brings the transformed dimension last."""
    tensor, chosen = call.inputs[0], call.get("dim")
    last = chosen[-1] % tensor.dim() == tensor.dim() - 1
    return Need((size_of(tensor),) * (1 if last else 2))


# ---------------------------------------------------------------------------------------------- indices


def accumulate(call: Demand) -> Need:
    """index_put with accumulate=True: a linear index, its sorted copy, two orders, and the sort's buffer."""
    if not call.get("accumulate"):
        return NOTHING
    indices = [t for t in call.get("indices") if isinstance(t, torch.Tensor)]
    if any(t.dtype in (torch.bool, torch.uint8) for t in indices):
        return Need(unsure=2 * size_of(call.inputs[0]))
    count = math.prod(torch.broadcast_shapes(*(t.shape for t in indices)))
    indexed = [n for n, t in zip(call.inputs[0].shape, call.get("indices"), strict=False) if t is not None]
    buffer = cub.radix_sort(count, LONG, LONG, call.gpu, cub.bits_of(math.prod(indexed) - 1))
    return Need((*(LONG * count,) * 5, buffer))


def mask_index(call: Demand) -> Need:
    """A boolean index becomes the positions of its true elements, one list a dimension."""
    masks = [t for t in call.inputs[1:] if t.dtype in (torch.bool, torch.uint8)]
    if not masks:
        return NOTHING
    rows = call.outputs[0].numel() // max(1, math.prod(call.inputs[0].shape[masks[0].dim() :]))
    return Need(tuple(LONG * rows * mask.dim() for mask in masks))


def masked_scatter(call: Demand) -> Need:
    """The prefix sum of the mask, as 64-bit numbers."""
    count = call.inputs[0].numel()
    return Need((LONG * count, cub.scan(count, LONG))) if count else NOTHING


def nonzero(call: Demand) -> Need:
    """The count, and the buffer of counting or of selecting, which come one after the other."""
    count = call.inputs[0].numel()
    return Need((4, max(cub.reduce(count, call.gpu), cub.select(count, call.gpu)))) if count else NOTHING


# ---------------------------------------------------------------------------------------------- sorting and sampling


def length_of(call: Demand) -> int:
    """Elements along the operator's dimension; the last where none is given."""
    tensor = call.inputs[0]
    return int(tensor.shape[call.get("dim", -1)]) if tensor.dim() else 1


def scanning(call: Demand) -> Need:
    """A prefix sum over all elements is CUB's; along one dimension of several it needs nothing."""
    tensor, result = call.inputs[0], call.outputs[0]
    if not tensor.numel() or tensor.numel() != length_of(call):
        return NOTHING
    return Need((cub.scan(tensor.numel(), result.element_size(), result.dtype not in (torch.float16, torch.bfloat16)),))


def multinomial(call: Demand) -> Need:
    """Draws with replacement: a copy, normalized, summed up. Others: exponential samples, and the largest of them."""
    weights, draws = call.inputs[0], int(call.get("num_samples"))
    size = size_of(weights)
    if draws == 1:
        return Need((size,))
    if call.get("replacement"):
        return Need((size, size, size))
    return Need((size, size // weights.shape[-1] * draws))


def permutation(call: Demand) -> Need:
    """The numbers to permute, random keys, their sorted copy, and the sort's buffer."""
    result = call.outputs[0]
    count = result.numel()
    if not count:
        return NOTHING
    bits = min(64, math.ceil(math.log2(count - (6 * count * count + 1) / (12 * math.log(0.9)))))
    key = 4 if bits <= 32 else LONG
    buffer = cub.radix_sort(count, key, result.element_size(), call.gpu, bits)
    return Need((size_of(result), key * count, key * count, buffer))


# ---------------------------------------------------------------------------------------------- normalization


def group_norm(call: Demand) -> Need:
    """Two factors an image and channel."""
    images, channels = call.inputs[0].shape[:2]
    size = images * channels * accumulator(call.inputs[0].dtype)
    return Need((size, size))


def group_norm_backward(call: Demand) -> Need:
    """Two sums and (with a weight) a factor an image and channel, two factors an image and group."""
    grad = call.inputs[0]
    images, channels = grad.shape[:2]
    size = images * channels * accumulator(grad.dtype)
    groups = images * int(call.get("group", 1)) * accumulator(grad.dtype)
    if grad.numel() == images * channels:  # GroupNorm1dBackward
        return Need((groups, groups))
    return Need((*(size,) * (3 if call.get("weight") is not None else 2), groups, groups))


def layer_norm_backward(call: Demand) -> Need:
    """Copies in order, and partial sums for weight and bias where there are very many short rows.

    These take 32 rows a block, 32768 blocks at most.
    """
    copies = in_order(call)
    tensor, weight = call.inputs[1], call.get("weight")
    width = math.prod(call.get("normalized_shape", ()))
    rows = tensor.numel() // max(1, width)
    if VERSION < (2, 8) or weight is None or rows <= 64 * 1024 or width // 32 >= call.gpu.sm_count // 2:
        return copies
    blocks = min(32 * 1024 // -(-width // 32), -(-rows // 32))
    asked = call.get("output_mask", (True, True, True))[1:]
    return Need((*copies.sizes, *(blocks * width * weight.element_size(),) * sum(asked)))


NATIVE = "aten/src/ATen/native/cuda/"

SCRATCH: tuple[Row, ...] = (
    Row(("sum", "mean", "prod", "nansum", "linalg_vector_norm", "norm"), summing,
        NATIVE + "Reduce.cuh, ReduceMomentKernel.cu, ReduceSumProdKernel.cu, ReduceNormKernel.cu; recorded: "
        "Wedsonlin/assignment2-systems, JasperSolt/EoR_NN"),
    Row(("amax", "amin", "max", "min", "any", "all"), comparing,
        NATIVE + "ReduceMaxValuesKernel.cu, ReduceLogicKernel.cu; aten/src/ATen/native/ReduceOps.cpp (allany_impl); "
        "recorded: JasperSolt/EoR_NN (any)"),
    Row(("mse_loss", "smooth_l1_loss", "huber_loss"), reduced_loss,
        "aten/src/ATen/native/BinaryOps.cpp, Loss.cpp (mse_loss_out, apply_loss_reduction); an H200's peaks"),
    Row(("binary_cross_entropy", "soft_margin_loss"), reduced_apart,
        NATIVE + "Loss.cu; aten/src/ATen/native/Loss.cpp; an H200's peaks"),
    Row(("multi_margin_loss", "multilabel_margin_loss_forward"), margin_loss,
        NATIVE + "MultiMarginLoss.cu, MultiLabelMarginCriterion.cu; an H200's peaks"),
    Row(("_softmax", "_log_softmax", "_log_softmax_backward_data"), in_order, NATIVE + "SoftMax.cu (host_softmax)",
        copies=True),
    Row(("native_layer_norm", "_fused_rms_norm"), in_order,
        NATIVE + "layer_norm_kernel.cu (expect_contiguous); Liger-Kernel's peaks on an H100", copies=True),
    Row(("_softmax_backward_data",), softmax_backward, NATIVE + "SoftMax.cu (softmax_backward_cuda_out); an H200's"),
    Row(("_fft_c2r",), complex_to_real, NATIVE + "SpectralOps.cpp (_fft_c2r_cufft, _exec_fft); an H200's peaks"),
    Row(("argmax", "argmin"), indexing, NATIVE + "ReduceArgMaxKernel.cu, ReduceArgMinKernel.cu"),
    Row(("var", "std", "var_mean", "std_mean"), welford, NATIVE + "ReduceMomentKernel.cu (WelfordData, vt0 of 2)"),
    Row(("logsumexp",), log_sum_exp, "aten/src/ATen/native/ReduceOps.cpp (logsumexp_out_impl)"),
    Row(("_foreach_norm", "_foreach_max", "_foreach_powsum"), foreach_norm, NATIVE + "ForeachReduceOp.cu"),
    Row(("index_put", "_index_put_impl", "_unsafe_index_put"), accumulate,
        NATIVE + "Indexing.cu (index_put_with_sort_kernel); recorded: Wedsonlin/assignment2-systems"),
    Row(("index", "_unsafe_index", "masked_select"), mask_index, NATIVE + "IndexKernel.cpp, Nonzero.cu"),
    Row(("masked_scatter",), masked_scatter, NATIVE + "IndexKernel.cpp (masked_scatter_cuda)"),
    Row(("nonzero",), nonzero, NATIVE + "Nonzero.cu (nonzero_cuda_out_impl); recorded: Constructor-Sun/code_location"),
    Row(("cumsum", "cumprod", "logcumsumexp"), scanning, NATIVE + "ScanUtils.cuh (scan_dim); recorded: "
        "Constructor-Sun/code_location"),
    Row(("multinomial",), multinomial, NATIVE + "MultinomialKernel.cu; aten/src/ATen/native/Distributions.cpp"),
    Row(("randperm",), permutation, NATIVE + "Randperm.cu"),
    Row(("native_group_norm",), group_norm, NATIVE + "group_norm_kernel.cu (GroupNormKernelImplInternal)"),
    Row(("native_group_norm_backward",), group_norm_backward, NATIVE + "group_norm_kernel.cu"),
    Row(("native_layer_norm_backward", "_fused_rms_norm_backward"), layer_norm_backward,
        NATIVE + "layer_norm_kernel.cu (LaunchGammaBetaBackwardCUDAKernel)"),
)  # fmt: skip
"""Operators' names without namespace and without the underscore of an in-place form."""
