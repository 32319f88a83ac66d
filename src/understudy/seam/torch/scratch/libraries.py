"""Temporary memory of NVIDIA's libraries and of the fused attention kernels, by operator. Each row names its source.

What cuDNN takes is its own choice and not published: those rows are models, fitted to recorded sizes where there are
any, and widen the bound on the peak by what they may be off.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from understudy.seam.torch.scratch.need import NOTHING, Call, Need, Row, size_of
from understudy.seam.torch.scratch.recurrent_space import workspace

FLOAT = 4
LT_PERSISTENT, LT_UNIFIED = (2, 9), (2, 12)
"""The first PyTorch that keeps cuBLASLt's workspace (pytorch#156495), and that uses cuBLAS's (#168175, #175879)."""
WINOGRAD_POINTS = 25
"""Floats that cuDNN's Winograd kernel keeps of each 3 x 3 filter (recorded: JasperSolt/EoR_NN, cuDNN 9, float32)."""


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


# ---------------------------------------------------------------------------------------------- cuBLASLt


def lt_workspace_bytes() -> int:
    """The workspace of cuBLASLt: CUBLASLT_WORKSPACE_SIZE in KiB, 1 MiB without it."""
    text = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    return (int(text) if text.isdigit() else 1024) << 10


def fuses_bias(call: Call) -> bool:
    """Whether `addmm` goes through cuBLASLt with the bias in its epilogue, as PyTorch decides it."""
    bias, left, right = call.inputs[:3]
    return (
        call.get("beta", 1) == 1
        and bias.dim() == 1
        and right.dim() == 2
        and bias.numel() == right.shape[1]
        and bias.is_contiguous()
        and min(*right.shape) > 1
        and left.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    )


def addmm(call: Call) -> Need:
    """Each call takes a workspace of its own; from 2.9 on it is kept, and `Memory.workspace` has it."""
    return Need((lt_workspace_bytes(),)) if fuses_bias(call) else NOTHING


# ---------------------------------------------------------------------------------------------- cuDNN's convolutions


def convolution(call: Call) -> Need:
    """A convolution forward: its filters transformed, or everything in the layout that tensor cores want."""
    images, weight = call.inputs[:2]
    return _convolution(call, images, weight, call.outputs[0], weight.shape[0])


def convolution_backward(call: Call) -> Need:
    """The larger of the two halves, gradient of the input and of the weight; they run one after the other."""
    grad, images, weight = call.inputs[:3]
    return _convolution(call, images, weight, grad, weight.shape[1])


def _convolution(call: Call, images: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, made: int) -> Need:
    kernel: Sequence[int] = weight.shape[2:]
    groups = int(call.get("groups", 1))
    if not torch._C._get_cudnn_enabled() or images.dtype == torch.float64 or groups == images.shape[1] > 1:
        return NOTHING
    everything = size_of(images) + size_of(weight) + size_of(result)
    half = images.dtype in (torch.float16, torch.bfloat16)
    lasts = images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
    search = (_search(images, weight, result, call),) if torch._C._get_cudnn_benchmark() else ()
    if half and call.gpu.has_tensor_cores and not lasts and max(kernel, default=1) > 1:
        return Need((everything,), everything, search, spare=True)
    dense = set(_pair(call, "stride")) == set(_pair(call, "dilation")) == {1}
    if not half and tuple(kernel) == (3, 3) and dense:
        filters = FLOAT * (WINOGRAD_POINTS * weight.shape[0] * weight.shape[1] + made)
        return Need((filters,), 0 if lasts else everything, search, spare=True)
    unsure = 0 if lasts or max(kernel, default=1) == 1 else everything
    return Need((), unsure, search, spare=True)


def _pair(call: Call, name: str) -> tuple[int, ...]:
    value = call.get(name, 1)
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _search(images: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, call: Call) -> int:
    """What `cudnn.benchmark` tries at most: the Fourier transforms of input, filters and output, half of them complex.

    Lavin and Gray (arXiv 1509.09308) and Mathieu et al. (arXiv 1312.5851) give the sizes of both families.
    """
    if max(weight.shape[2:], default=1) == 1:
        return size_of(result)
    area = 1
    for size, kernel in zip(images.shape[2:], weight.shape[2:], strict=True):
        area *= 1 << (size + kernel - 2).bit_length()
    planes = images.shape[0] * (images.shape[1] + weight.shape[0]) + weight.shape[0] * weight.shape[1]
    if set(_pair(call, "stride")) != {1}:
        return 2 * (size_of(images) + size_of(result))
    return planes * (area // 2 + 1) * 2 * FLOAT


# ---------------------------------------------------------------------------------------------- attention


def _sizes(call: Call, name: str) -> tuple[int, int, int, int]:
    """Texts, heads, positions and width of queries or keys, in whichever order the operator takes them.

    Of texts of several lengths all positions together: flash attention adds up to 128 for each, and a model leaves
    them out.
    """
    shape = call.get(name).shape
    if call.name.startswith("aten::_scaled"):
        return shape[0], shape[1], shape[2], shape[3]
    return (shape[0] if len(shape) == 4 else 1), shape[-2], shape[-3], shape[-1]


def flash_forward(call: Call) -> Need:
    """Partial results where few heads and queries leave multiprocessors idle, so that keys are split."""
    batch, heads, length, width = _sizes(call, "query")
    if call.get("dropout_p", 0.0) or call.get("cum_seq_q") is not None:
        return NOTHING
    block = 256 if width <= 64 else 128 if width <= 128 else 64
    tiles = batch * heads * -(-length // 64)
    splits = _splits(tiles, 2 * call.gpu.sm_count, -(-_sizes(call, "key")[2] // block))
    if splits <= 1:
        return NOTHING
    rows = splits * batch * heads * length * FLOAT
    return Need((rows, rows * _up(width, 32)))


def _splits(tiles: int, slots: int, blocks: int) -> int:
    """How flash attention splits the keys (num_splits_heuristic): as few as fill the GPU nearly as well as the best."""
    if tiles >= 0.8 * slots:
        return 1
    most = min(128, slots, blocks)
    fills: list[float] = []
    for count in range(1, most + 1):
        if count > 1 and -(-blocks // count) == -(-blocks // (count - 1)):
            fills.append(0.0)
        else:
            waves = tiles * count / slots
            fills.append(waves / -(-waves // 1))
    best = max(fills, default=0.0)
    return next((i + 1 for i, fill in enumerate(fills) if fill >= 0.85 * best), 1)


def flash_backward(call: Call) -> Need:
    """The rows' sums and dQ in float32, padded; with fewer key heads than query heads dK and dV of all heads too."""
    key = call.inputs[2]
    batch, heads, length, width = _sizes(call, "query")
    rows = batch * heads * _up(length, 128) * FLOAT
    padded = _up(width, 32) if width <= 192 else 256
    splits = -(-call.gpu.sm_count // (batch * heads)) if torch._C._get_deterministic_algorithms() else 1
    _, own_heads, keys, _ = _sizes(call, "key")
    shared = own_heads != heads
    expanded = batch * heads * keys * width * key.element_size()
    return Need((rows, splits * rows * padded, *((expanded, expanded) if shared else ())))


def efficient_forward(call: Call) -> Need:
    """A float32 accumulator for half precision and wide heads."""
    query, value = call.inputs[0], call.inputs[2]
    if query.dtype == torch.float32 or value.shape[-1] <= 128:
        return NOTHING
    return Need((query.numel() // query.shape[-1] * value.shape[-1] * FLOAT,))


def efficient_backward(call: Call) -> Need:
    """delta, of products where the kernel does not make it itself; then dQ's blocks of 64 x 64, each with a lock."""
    query = call.inputs[1]
    batch, heads, length, width = _sizes(call, "query")
    delta = batch * heads * length * FLOAT
    block = 64 if query.dtype == torch.float32 or width <= 64 or call.gpu.compute_capability < (8, 0) else 128
    accumulated = batch * heads * -(-length // block) * -(-width // block) * (block * block * FLOAT + 16)
    if query.dtype == torch.float32:
        return Need((delta, delta, max(accumulated, query.numel() * FLOAT)))
    return Need((batch * heads * _up(length, 32) * FLOAT, accumulated))


def cudnn_backward(call: Call) -> Need:
    """The rows' sums and dQ in float32: assumed to be what flash attention takes, which cuDNN's kernels implement."""
    query = call.inputs[1]
    rows = query.numel() // query.shape[-1] * FLOAT
    return Need((rows, query.numel() * FLOAT), unsure=query.numel() * FLOAT)


def fast_path(call: Call) -> Need:
    """The inference path of nn.MultiheadAttention: the projections of all three, and the attention or its scores."""
    size = size_of(call.inputs[0])
    if call.inputs[0].is_nested:
        return Need(unsure=8 * size)
    return Need(_fast_attention(call, call.get("need_weights", True)), unsure=size)


def fast_layer(call: Call) -> Need:
    """The inference path of nn.TransformerEncoderLayer: the larger of its attention and its inner layer."""
    query, inner = call.inputs[0], call.get("ffn_weight_1")
    if query.is_nested:
        return Need(unsure=8 * size_of(query))
    hidden = query.numel() // query.shape[-1] * inner.shape[0] * query.element_size()
    attention, feed = _fast_attention(call, False), (size_of(query), hidden)
    return Need(max(attention, feed, key=sum), unsure=size_of(query))


def _fast_attention(call: Call, weights: bool) -> tuple[int, ...]:
    query = call.inputs[0]
    heads = int(call.get("num_head", call.get("num_heads", 1)))
    size = size_of(query)
    width = query.shape[-1] // heads
    if width % 8 == 0 and not weights:
        return 3 * size, size
    scores = query.shape[0] * heads * query.shape[1] ** 2 * query.element_size()
    return max((3 * size, 3 * size), (3 * size, scores, scores), key=sum)


NATIVE = "aten/src/ATen/native/"
TRANSFORMERS = NATIVE + "transformers/cuda/"

ROWS: tuple[Row, ...] = (
    Row(("addmm", "_addmm_activation"), addmm,
        "aten/src/ATen/cuda/CUDABlas.cpp (gemm_and_bias), " + NATIVE + "cuda/Blas.cpp; recorded: JasperSolt/EoR_NN",
        until=LT_PERSISTENT),
    Row(("convolution", "_convolution", "cudnn_convolution", "cudnn_convolution_transpose"), convolution,
        NATIVE + "cudnn/Conv_v8.cpp (run_conv_plan, generate_and_filter_plans); recorded: JasperSolt/EoR_NN (3 x 3), "
        "HugePandaCoder/octree-nca-groupeq (1 x 1 and depthwise: nothing)", exact=False),
    Row(("convolution_backward",), convolution_backward, NATIVE + "cudnn/Conv_v8.cpp; recorded: JasperSolt/EoR_NN",
        exact=False),
    Row(("_scaled_dot_product_flash_attention", "_flash_attention_forward"), flash_forward,
        TRANSFORMERS + "flash_attn/flash_api.cpp (set_params_splitkv, num_splits_heuristic)"),
    Row(("_scaled_dot_product_flash_attention_backward", "_flash_attention_backward"), flash_backward,
        TRANSFORMERS + "flash_attn/flash_api.cpp (mha_bwd)"),
    Row(("_scaled_dot_product_efficient_attention", "_efficient_attention_forward"), efficient_forward,
        TRANSFORMERS + "attention.cu; recorded: cranberrii/ftcourse"),
    Row(("_scaled_dot_product_efficient_attention_backward", "_efficient_attention_backward"), efficient_backward,
        TRANSFORMERS + "attention_backward.cu, mem_eff_attention/kernel_backward.h; recorded: cranberrii/ftcourse"),
    Row(("_scaled_dot_product_cudnn_attention_backward",), cudnn_backward, NATIVE + "cudnn/MHA.cpp", exact=False),
    Row(("_cudnn_rnn", "_cudnn_rnn_backward"), workspace,
        NATIVE + "cudnn/RNN.cpp; printed: pytorch#2895, SeanNaren/deepspeech.pytorch#172", exact=False),
    Row(("_native_multi_head_attention",), fast_path,
        TRANSFORMERS + "attention.cu (native_multi_head_attention_cuda)", exact=False),
    Row(("_transformer_encoder_layer_fwd",), fast_layer,
        NATIVE + "transformers/transformer.cpp (transformer_encoder_layer_forward)", exact=False),
)  # fmt: skip
"""Operators' names without namespace and without the underscore of an in-place form."""
