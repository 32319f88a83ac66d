"""`scaled_dot_product_attention` on a device: CUDA's choice of a kernel, and the values of the fused ones.

The fused operators have no kernel for the CPU, but PyTorch knows their shapes and their gradients: forward and backward
arrive in the dispatch mode under CUDA's names, keep what CUDA keeps, and are computed here with the CPU's kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.kernels import attention_checks as checks
from windtunnel.seam.torch.kernels import attention_choice as choice
from windtunnel.seam.torch.kernels import attention_reasons as reasons
from windtunnel.seam.torch.plans.arguments import Kernel, Keywords, OpOverload, Result, tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.halves import HALVES
from windtunnel.seam.torch.rehearsal.shape_functions import SHAPES
from windtunnel.seam.torch.state.positions import MASK, MIXER
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import VERSION, device_of, disable_torch_function

Tensor = torch.Tensor
aten = torch.ops.aten
Values = Callable[..., tuple[object, ...]]
LIFTS = VERSION >= (2, 14)
"""From torch 2.14 on tensors of three dimensions get a fourth one, and so a fused kernel."""
MASK_ALIGNMENT = 8
"""Elements to which a mask's rows are padded for the memory-efficient kernel, where its strides are no multiples."""


def composite(
    state: State,
    func: OpOverload,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """aten::scaled_dot_product_attention, taken apart as on CUDA; on host tensors as PyTorch does it."""
    index = device_of(query)
    if index >= 0 and not state.local.inner:
        checks.validate(func, query, key, value, attn_mask)
    if index < 0 or state.local.inner or query.dim() < 3:
        plain: Tensor = func.decompose(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return plain
    if LIFTS and query.dim() == key.dim() == value.dim() == 3:
        while attn_mask is not None and attn_mask.dim() < 4:
            attn_mask = attn_mask.unsqueeze(0)
        q, k, v = (t.unsqueeze(0) for t in (query, key, value))
        out = composite(state, func, q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return out.squeeze(0)
    backend = _choose(state, index, query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    dtype = query.dtype
    if backend == choice.MATH and is_causal and attn_mask is None:
        # C++ would make it on the CPU, where it takes all tensors to be.
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        is_causal = False
        if dtype in HALVES and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
            dtype = torch.float32  # of which the math is
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        hidden = torch.scalar_tensor(-math.inf, dtype=dtype, device=attn_mask.device)
        attn_mask = torch.where(attn_mask, 0.0, hidden)
    if backend == choice.MATH:
        math_out: Tensor = aten._scaled_dot_product_attention_math.default(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
        return math_out
    if backend == choice.EFFICIENT and attn_mask is not None:
        attn_mask = _prepared(attn_mask, query, key)
    return _run(backend, query, key, value, attn_mask, dropout_p, is_causal, scale)


def _choose(
    state: State, index: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, causal: bool,
    gqa: bool,
) -> int:  # fmt: skip
    with disable_torch_function():
        asked = problem(state, index, query, key, value, mask, p, causal, gqa)
        found = choice.choose(asked)
        if found is None:
            raise reasons.none_available(asked)
        return found


def problem(
    state: State, index: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, causal: bool,
    gqa: bool = True,
) -> choice.Problem:  # fmt: skip
    """What the choice of a kernel on device `index` looks at."""
    cudnn = int(torch.backends.cudnn.version() or 0)
    return choice.Problem(query, key, value, mask, p, causal, state.device(index).gpu, cudnn, state.cuda_version, gqa)


def _run(
    backend: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float, causal: bool,
    scale: float | None,
) -> Tensor:  # fmt: skip
    width = query.shape[-1]
    if backend == choice.FLASH:
        missing = -width % 8
        if missing:
            query, key, value = (F.pad(t, (0, missing)) for t in (query, key, value))
        scale = 1 / math.sqrt(width) if scale is None else scale
        out: Tensor = aten._scaled_dot_product_flash_attention.default(query, key, value, p, causal, scale=scale)[0]
        return out[..., :width] if missing else out
    if backend == choice.EFFICIENT and key.shape[1] != query.shape[1]:
        key, value = (t.repeat_interleave(query.shape[1] // key.shape[1], 1) for t in (key, value))
    tensors = [t for t in (query, key, value, mask) if t is not None]
    trains = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    fused = (
        aten._scaled_dot_product_cudnn_attention.default
        if backend == choice.CUDNN
        else aten._scaled_dot_product_efficient_attention.default
    )
    found: Tensor = fused(query, key, value, mask, trains, p, causal, scale=scale)[0]
    return found


def _prepared(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A mask of all heads for the memory-efficient kernel, its rows padded (preprocess_mask of attention.cpp)."""
    if mask.stride(-1) != 1 or any(stride % MASK_ALIGNMENT for stride in mask.stride()[:-1]):
        keys = mask.shape[-1]
        mask = F.pad(mask, (0, MASK_ALIGNMENT - keys % MASK_ALIGNMENT))[..., :keys]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


# ---------------------------------------------------------------------------------------------- the operators


def chosen(dispatch: Dispatch, call: Call) -> object:
    """aten::_fused_sdp_choice: which kernel it would be."""
    index = device_of(call.args[0])
    if index < 0:
        return call.func(*call.args, **call.kwargs)
    given = call.named()
    query, key, value = given["query"], given["key"], given["value"]
    p, causal = given.get("dropout_p", 0.0), given.get("is_causal", False)
    shared = given.get("enable_gqa", False)
    return _choose(dispatch.state, index, query, key, value, given.get("attn_mask"), p, causal, shared)


def fused(dispatch: Dispatch, call: Call) -> object:
    """A fused operator, forward or backward."""
    check = checks.BY_NAME.get(call.plan.name)
    if check is not None:
        check(call.named())
    return run(dispatch, call, values)


def run(dispatch: Dispatch, call: Call, compute: Values) -> object:
    """An operator without a kernel for the CPU: values from `compute`, shapes and layout from its meta kernel."""
    floating = dispatch.scan(call)
    if call.device < 0:
        return call.func(*call.args, **call.kwargs)
    for tensor in floating:
        dispatch.tag(tensor, call.device)
    out = compute(dispatch, call)
    dispatch.tag(out, call.device)
    dispatch.submit(call, out)
    return out


def values(dispatch: Dispatch, call: Call) -> tuple[object, ...]:
    """What a fused operator gives, computed on the CPU; without data, shapes alone."""
    return computed(dispatch, call, _computed)


def computed(dispatch: Dispatch, call: Call, compute: Values) -> tuple[object, ...]:
    """What `compute` gives, below the emulation; without data, shapes alone."""
    if dispatch.state.no_data:
        shapes: tuple[object, ...] = dispatch.compute(call)
        return shapes
    before, dispatch.local.inner = dispatch.local.inner, True
    try:
        with disable_torch_function():
            return compute(dispatch.state, call)
    finally:
        dispatch.local.inner = before


def _computed(state: State, call: Call) -> tuple[object, ...]:
    given: Keywords = call.named()
    if "_flash_" in call.plan.name and given.get("is_causal"):
        _align_at_the_end(given)
    out = empty(state, call)
    if call.plan.name.endswith("_backward"):
        grads = _backward(given)
        for place, grad in zip(out, grads, strict=False):
            if isinstance(place, Tensor):
                place.copy_(grad)
    else:
        _forward(state, given, out, call.device)
    return tuple(out)


def _align_at_the_end(given: Keywords) -> None:
    """Write a causal mask of other lengths out: flash attention aligns it at the last query and the last key.

    The other kernels align it at the first ones, and so do the CPU's. Only `causal_lower_right` calls flash attention
    with other lengths (torch/nn/attention/bias.py); what no key is left to gives zeros.
    """
    query = given["query"]
    queries, keys = query.shape[2], given["key"].shape[2]
    if queries != keys:
        hidden = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
        given["attn_bias"] = query.new_zeros(queries, keys).masked_fill_(hidden, -math.inf)
        given["is_causal"] = False


def _forward(state: State, given: Keywords, out: list[Result], device: int) -> None:
    """Fill a forward's results: the output, the rows' logarithms of sums, and the seed where there is dropout."""
    query = given["query"]
    seeds = [t for t in tensors_in(out[2:]) if not t.is_floating_point()]
    for seed in seeds:
        seed.zero_()
    p = given.get("dropout_p", 0.0)
    number = drawn(state, device, query.shape, given["key"].shape[2]) if p else 0
    if p:
        seeds[0].view(-1)[0] = number
    result, lse = _attend(query, given["key"], given["value"], _bias(given), p, given.get("is_causal", False),
                          given.get("scale"), number)  # fmt: skip
    out[0].copy_(result)
    if out[1].numel():
        flat = out[1].squeeze(-1) if out[1].dim() == 4 else out[1]
        flat[..., lse.shape[-1] :] = math.inf
        flat[..., : lse.shape[-1]] = lse


def drawn(state: State, device: int, shape: torch.Size, keys: int) -> int:
    """One number for this call's dropout, from seed and offset of the device's generator, which moves on."""
    position = state.positions[state.generators[device]._cdata]
    number = (position.seed ^ (position.offset * MIXER)) & (MASK >> 1)
    gpu = state.device(device).gpu
    position.advance(math.prod(shape[:3]) * keys, gpu.sm_count * gpu.max_threads_per_sm)
    return int(number)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, p: float, causal: bool, scale: float | None,
    seed: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    key, value = (all_heads(t, query) for t in (key, value))
    if not p and query.shape[-1] == value.shape[-1]:
        found = aten._scaled_dot_product_flash_attention_for_cpu.default(
            query, key, value, 0.0, causal, attn_mask=bias, scale=scale
        )
        return found[0], found[1]
    scores = scores_of(query, key, bias, causal, scale)
    weights = torch._safe_softmax(scores, -1)
    if p:
        weights = weights * kept_of(weights, p, seed)
    return weights @ value.to(weights.dtype), scores.logsumexp(-1)


def _backward(given: Keywords) -> list[Tensor]:
    """Gradients of query, key, value and bias."""
    grad = given.get("grad_out", given.get("grad_out_"))
    query, key, value, p = given["query"], given["key"], given["value"], given["dropout_p"]
    causal, scale, bias = given.get("is_causal", False), given.get("scale"), _bias(given)
    assert grad is not None
    heads = key.shape[1]
    key, value = (all_heads(t, query) for t in (key, value))
    wants_bias = bias is not None and given.get("grad_input_mask", (0, 0, 0, 0))[3]
    lse = given["logsumexp"]
    lse = (lse.squeeze(-1) if lse.dim() == 4 else lse)[..., : query.shape[2]]
    if not p and not wants_bias and query.shape[-1] == value.shape[-1]:
        lse = lse.transpose(1, 2).contiguous().transpose(1, 2)
        grads: list[Tensor] = list(aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
            grad, query, key, value, given["out"], lse, 0.0, causal, attn_mask=bias, scale=scale
        ))  # fmt: skip
    else:
        seed = int(given["philox_seed"].view(-1)[0]) if p else 0
        grads = gradients(grad, query, key, value, given["out"], lse, bias, p, causal, scale, seed)
    for place in (1, 2):
        if heads != query.shape[1]:
            grads[place] = grads[place].unflatten(1, (heads, -1)).sum(2)
    return grads


def gradients(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, bias: Tensor | None, p: float,
    causal: bool, scale: float | None, seed: int,
) -> list[Tensor]:  # fmt: skip
    """Gradients of query, key, value and the scores; `seed` is that of the forward's dropout.

    Weights come from `lse`, and their mean gradient from `out`, as in the kernels: ring attention gives both of all
    keys, together with a part of the keys.
    """
    scores = scores_of(query, key, bias, causal, scale)
    # A row that sees no key has the logarithm +inf or -inf, depending on the kernel, and no weights.
    weights = (scores - lse[..., None].masked_fill(lse[..., None].isneginf(), math.inf)).exp()
    kept = kept_of(weights, p, seed) if p else torch.ones((), dtype=weights.dtype)
    grad, query, key, value, out = (t.to(weights.dtype) for t in (grad, query, key, value, out))
    grad_weights = (grad @ value.mT) * kept
    grad_scores = weights * (grad_weights - (grad * out).sum(-1, keepdim=True))
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return [grad_scores @ key * factor, grad_scores.mT @ query * factor, (weights * kept).mT @ grad, grad_scores]


def scores_of(query: Tensor, key: Tensor, bias: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    """Scores (text, head, query, key), in float32 or wider."""
    wide = torch.promote_types(query.dtype, torch.float32)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query.to(wide) @ key.to(wide).mT * factor
    if bias is not None:
        scores = scores + bias.to(wide)
    if causal:
        upper = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(upper, -math.inf)
    return scores


def kept_of(weights: Tensor, p: float, seed: int) -> Tensor:
    """What dropout leaves of each weight: 0 or 1 / (1 - p); the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(weights.shape, generator=generator) >= p).to(weights.dtype) / (1 - p)


def _bias(given: Keywords) -> Tensor | None:
    bias = given.get("attn_bias")
    return bias if isinstance(bias, Tensor) and bias.numel() else None


def all_heads(tensor: Tensor, query: Tensor) -> Tensor:
    """Keys or values of heads that several queries share, once a query head."""
    shared = query.shape[1] // tensor.shape[1]
    return tensor.repeat_interleave(shared, 1) if shared > 1 else tensor


def empty(state: State, call: Call) -> list[Result]:
    """Results to fill, in the shapes and layouts that the operator's meta kernel gives to these arguments."""
    func = call.plan.func
    key = (func, *((t.shape, t.stride(), t.dtype) if isinstance(t, Tensor) else str(t) for t in call.given))
    shapes = state.kernels.shapes.get(key)
    if shapes is None:
        shaped: Kernel = SHAPES.get(func._schema.name, func)
        keywords = {name: _to_meta(value) for name, value in call.kwargs.items()}
        made: Result = shaped(*map(_to_meta, call.args), **keywords)
        shapes = [(t.shape, t.stride(), t.dtype) if isinstance(t, Tensor) else t for t in made]
        state.kernels.shapes[key] = shapes
    return [_made(*shape) if isinstance(shape, tuple) else shape for shape in shapes]


def _to_meta(value: object) -> object:
    return value.to("meta") if isinstance(value, Tensor) else value


def _made(shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device="cpu")


_FUSED = tuple(
    f"aten::_scaled_dot_product_{kind}_attention{end}"
    for kind in ("flash", "efficient", "cudnn")
    for end in ("", "_backward")
)
COMPOSITES = {aten.scaled_dot_product_attention.default: composite}
"""By operator, for `composites.Composites`."""
HANDLERS = {
    "aten::_fused_sdp_choice": chosen,
    **dict.fromkeys(_FUSED, fused),
}
"""Operators with handlers of their own."""
VALUES = dict.fromkeys(_FUSED, values)
"""What computes operators for which the CPU has no kernel, for a replay that has all the rest."""
