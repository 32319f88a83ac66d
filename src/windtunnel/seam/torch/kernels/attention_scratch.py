"""The memory that the fused attention kernels take, forward and backward, and the fast paths of inference.

"recorded" are public memory snapshots of real GPUs; what cuDNN takes is its own choice and not published, and assumed.
"""

from __future__ import annotations

import torch

from windtunnel.seam.torch.scratch.need import NOTHING, Demand, Need, Row, size_of

FLOAT = 4
NATIVE = "aten/src/ATen/native/"
TRANSFORMERS = NATIVE + "transformers/cuda/"


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _sizes(call: Demand, name: str) -> tuple[int, int, int, int]:
    """Texts, heads, positions and width of queries or keys, in whichever order the operator takes them.

    Of texts of several lengths all positions together: flash attention adds up to 128 for each, and a model leaves
    them out.
    """
    shape = call.get(name).shape
    if call.name.startswith("aten::_scaled"):
        return shape[0], shape[1], shape[2], shape[3]
    return (shape[0] if len(shape) == 4 else 1), shape[-2], shape[-3], shape[-1]


def flash_forward(call: Demand) -> Need:
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


def flash_backward(call: Demand) -> Need:
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


def efficient_forward(call: Demand) -> Need:
    """A float32 accumulator for half precision and wide heads."""
    query, value = call.inputs[0], call.inputs[2]
    if query.dtype == torch.float32 or value.shape[-1] <= 128:
        return NOTHING
    return Need((query.numel() // query.shape[-1] * value.shape[-1] * FLOAT,))


def efficient_backward(call: Demand) -> Need:
    """delta, of products where the kernel does not make it itself; then dQ's blocks of 64 x 64, each with a lock."""
    query = call.inputs[1]
    batch, heads, length, width = _sizes(call, "query")
    delta = batch * heads * length * FLOAT
    block = 64 if query.dtype == torch.float32 or width <= 64 or call.gpu.compute_capability < (8, 0) else 128
    accumulated = batch * heads * -(-length // block) * -(-width // block) * (block * block * FLOAT + 16)
    if query.dtype == torch.float32:
        return Need((delta, delta, max(accumulated, query.numel() * FLOAT)))
    return Need((batch * heads * _up(length, 32) * FLOAT, accumulated))


def cudnn_backward(call: Demand) -> Need:
    """The rows' sums and dQ in float32: assumed to be what flash attention takes, which cuDNN's kernels implement."""
    query = call.inputs[1]
    rows = query.numel() // query.shape[-1] * FLOAT
    return Need((rows, query.numel() * FLOAT), unsure=query.numel() * FLOAT)


def fast_path(call: Demand) -> Need:
    """The inference path of nn.MultiheadAttention: the projections of all three, and the attention or its scores."""
    size = size_of(call.inputs[0])
    if call.inputs[0].is_nested:
        return Need(unsure=8 * size)
    return Need(_fast_attention(call, call.get("need_weights", True)), unsure=size)


def fast_layer(call: Demand) -> Need:
    """The inference path of nn.TransformerEncoderLayer: the larger of its attention and its inner layer."""
    query, inner = call.inputs[0], call.get("ffn_weight_1")
    if query.is_nested:
        return Need(unsure=8 * size_of(query))
    hidden = query.numel() // query.shape[-1] * inner.shape[0] * query.element_size()
    attention, feed = _fast_attention(call, False), (size_of(query), hidden)
    return Need(max(attention, feed, key=sum), unsure=size_of(query))


def _fast_attention(call: Demand, weights: bool) -> tuple[int, ...]:
    query = call.inputs[0]
    heads = int(call.get("num_head", call.get("num_heads", 1)))
    size = size_of(query)
    width = query.shape[-1] // heads
    if width % 8 == 0 and not weights:
        return 3 * size, size
    scores = query.shape[0] * heads * query.shape[1] ** 2 * query.element_size()
    return max((3 * size, 3 * size), (3 * size, scores, scores), key=sum)


SCRATCH = (
    Row(("_scaled_dot_product_flash_attention", "_flash_attention_forward"), flash_forward,
        TRANSFORMERS + "flash_attn/flash_api.cpp (set_params_splitkv, num_splits_heuristic)"),
    Row(("_scaled_dot_product_flash_attention_backward", "_flash_attention_backward"), flash_backward,
        TRANSFORMERS + "flash_attn/flash_api.cpp (mha_bwd)"),
    Row(("_scaled_dot_product_efficient_attention", "_efficient_attention_forward"), efficient_forward,
        TRANSFORMERS + "attention.cu; recorded: cranberrii/ftcourse"),
    Row(("_scaled_dot_product_efficient_attention_backward", "_efficient_attention_backward"), efficient_backward,
        TRANSFORMERS + "attention_backward.cu, mem_eff_attention/kernel_backward.h; recorded: cranberrii/ftcourse"),
    Row(("_scaled_dot_product_cudnn_attention_backward",), cudnn_backward, NATIVE + "cudnn/MHA.cpp", exact=False),
    Row(("_native_multi_head_attention",), fast_path,
        TRANSFORMERS + "attention.cu (native_multi_head_attention_cuda)", exact=False),
    Row(("_transformer_encoder_layer_fwd",), fast_layer,
        NATIVE + "transformers/transformer.cpp (transformer_encoder_layer_forward)", exact=False),
)  # fmt: skip
"""Operators' names without namespace and without the underscore of an in-place form."""
