"""The attention kernels for texts of several lengths: `_flash_attention_forward`, `_efficient_attention_forward`.

Jagged nested tensors and `torch.nn.attention.varlen` call them with all texts in one tensor and the places where each
begins. Shapes are those of PyTorch's meta kernels; each text's values are computed by itself. A causal mask of flash
attention, and its windows, are aligned at the texts' ends, that of the memory-efficient kernel as `custom_mask_type`
says (aten/src/ATen/native/transformers/cuda/attention.cu).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from windtunnel.errors import UnsupportedError
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.kernels import attention
from windtunnel.seam.torch.kernels import attention_choice as choice
from windtunnel.seam.torch.plans.arguments import Keywords, Result, tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.halves import HALVES
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of

if TYPE_CHECKING:
    from torch._C import _SDPAParams

Tensor = torch.Tensor
FROM_TOP_LEFT = 1
"""A `custom_mask_type` of the memory-efficient kernel: causal, aligned at the texts' beginnings."""
Place = tuple[int, slice]
"""A text: its entry of the batch, and its positions there."""
Places = tuple[Place, Place]
"""Where a text's queries are, and its keys."""
NOT_EMULATED = ("alibi_slopes", "block_table")
TYPES = {
    "aten::_flash_attention_forward": (HALVES, "FlashAttention only support fp16 and bf16 data type"),
    "aten::_efficient_attention_forward": (
        (*HALVES, torch.float32),
        "Only fp32, half & bf16 supported at the moment",
    ),
}
"""What each takes and says of other types (flash_attn/flash_api.cpp and attention.cu of native/transformers/cuda)."""
ASKED = {
    "_can_use_flash_attention": choice.FLASH,
    "_can_use_mem_efficient_attention": choice.EFFICIENT,
    "_can_use_cudnn_attention": choice.CUDNN,
}


def patches(state: State) -> list[Patch]:
    """The questions of `torch.backends.cuda.can_use_*`, which jagged tensors choose their kernel by."""
    return [Patch(torch._C, name, _asking(state, getattr(torch._C, name), kernel)) for name, kernel in ASKED.items()]


def _asking(state: State, stock: Callable[[_SDPAParams, bool], bool], kernel: int) -> object:
    def can_use(params: _SDPAParams, debug: bool = False) -> bool:
        query = params.query
        index = device_of(query)
        if index < 0:
            return bool(stock(params, debug))
        if query.is_nested and kernel == choice.CUDNN:
            return False  # unless TORCH_CUDNN_SDPA_NESTED_TENSOR_ENABLED is set (sdp_utils.cpp)
        tensors = query, params.key, params.value, params.attn_mask
        problem = attention.problem(state, index, *tensors, params.dropout, params.is_causal)
        return choice.can_use(kernel, problem)

    return can_use


def run(dispatch: Dispatch, call: Call) -> object:
    """One of these operators, forward or backward."""
    return attention.run(dispatch, call, values)


def values(dispatch: Dispatch, call: Call) -> tuple[object, ...]:
    """What such an operator gives, computed on the CPU; without data, shapes alone."""
    return attention.computed(dispatch, call, _computed)


def _computed(state: State, call: Call) -> tuple[object, ...]:
    given: Keywords = call.named()
    taken, refusal = TYPES.get(call.plan.name, ((), ""))
    if refusal and given["query"].dtype not in taken:
        raise RuntimeError(refusal)
    refused = f"windtunnel does not compute {call.plan.name} with"
    for name in NOT_EMULATED:
        if given.get(name) is not None:
            raise UnsupportedError(f"{refused} {name}: leave it out")
    if given.get("window_size") and not given.get("custom_mask_type"):
        raise UnsupportedError(f"{refused} window_size and no mask: give a causal one")
    if _used(given) is not None and given.get("cum_seq_q", given.get("cu_seqlens_q")) is None:
        raise UnsupportedError(f"{refused} a cache alone: say where its texts begin")
    out = attention.empty(state, call)
    places = _places(given)
    if call.plan.name.endswith("_backward"):
        _backward(given, out, places)
    else:
        _forward(state, given, out, places, call.device)
    return tuple(out)


def _forward(state: State, given: Keywords, out: list[Result], places: list[Places], device: int) -> None:
    query, key, value, p = (given[name] for name in ("query", "key", "value", "dropout_p"))
    seeds = tensors_in(out[2:4])
    for seed in seeds:
        seed.zero_()
    number = attention.drawn(state, device, query.shape, key.shape[-3]) if p else 0
    if p:
        seeds[0].view(-1)[0] = number
    if out[1].numel():
        out[1].fill_(math.inf)
    for position, (at, there) in enumerate(places):
        q, k, v = _text(query, at), _text(key, there), _text(value, there)
        k, v = (attention.all_heads(t, q) for t in (k, v))
        scores = attention.scores_of(q, k, _bias(given, q, k, position), False, given.get("scale"))
        weights = scores.softmax(-1).nan_to_num()
        if p:
            weights = weights * attention.kept_of(weights, p, number + position)
        _text(out[0], at).copy_(weights @ v.to(weights.dtype))
        if out[1].numel():
            rows = scores.logsumexp(-1)[0]
            _rows(out[1], position, at, rows.shape[-1]).copy_(rows)


def _backward(given: Keywords, out: list[Result], places: list[Places]) -> None:
    query, key, value, p = (given[name] for name in ("query", "key", "value", "dropout_p"))
    grad: Tensor = given["grad_out" if "grad_out" in given else "grad_out_"]
    lse: Tensor = given["logsumexp"]
    seed = given.get("rng_state", given.get("philox_seed"))
    number = int(seed.view(-1)[0]) if p and seed is not None else 0
    for position, (at, there) in enumerate(places):
        q, k, v = _text(query, at), _text(key, there), _text(value, there)
        heads = k.shape[1]
        wide_k, wide_v = (attention.all_heads(t, q) for t in (k, v))
        bias = _bias(given, q, k, position)
        found = attention.gradients(
            _text(grad, at), q, wide_k, wide_v, _text(given["out"], at), _rows(lse, position, at, q.shape[2]), bias, p,
            False, given.get("scale"), number + position,
        )  # fmt: skip
        for place in (1, 2):
            if heads != q.shape[1]:
                found[place] = found[place].unflatten(1, (heads, -1)).sum(2)
        for target, where, part in zip(out[:3], (at, there, there), found, strict=False):
            _text(target, where).copy_(part)
        if given.get("bias") is not None:
            out[3][position].copy_(found[3][0])


def _places(given: Keywords) -> list[Places]:
    """For each text (its entry of the batch, its positions), once for queries and once for keys."""
    begins: list[Tensor | None] = [
        given.get(name, given.get(other))
        for name, other in (("cum_seq_q", "cu_seqlens_q"), ("cum_seq_k", "cu_seqlens_k"))
    ]
    if not isinstance(begins[0], Tensor) or not begins[0].numel():
        return [((i, slice(None)), (i, slice(None))) for i in range(given["query"].shape[0])]
    queries, keys = ([(0, slice(a, b)) for a, b in pairwise(t.tolist())] for t in begins if t is not None)
    used = _used(given)
    if used is not None:  # a cache, of whose places for a text the first so many are in use
        keys = [(0, slice(at.start, at.start + length)) for (_, at), length in zip(keys, used.tolist(), strict=True)]
    return list(zip(queries, keys, strict=True))


def _used(given: Keywords) -> Tensor | None:
    """How many keys of each text are in use, of a cache."""
    used: Tensor | None = given.get("seqused_k", given.get("seqlen_k"))
    return used


def _text(tensor: Tensor, place: Place) -> Tensor:
    """One text of a tensor (batch, position, head, width) or (position, head, width), as (1, head, position, width)."""
    whole = tensor if tensor.dim() == 4 else tensor.unsqueeze(0)
    return whole[place].transpose(0, 1).unsqueeze(0)


def _rows(lse: Tensor, position: int, at: Place, queries: int) -> Tensor:
    """A text's logarithms (head, query), of all texts' in a row or of a batch's."""
    return lse[:, at[1]] if lse.dim() == 2 else lse[position, :, :queries]


def _bias(given: Keywords, query: Tensor, key: Tensor, position: int) -> Tensor | None:
    """What is added to a text's scores: the program's own bias, and minus infinity where a query must not look."""
    bias = given.get("bias")
    own = bias[position : position + 1] if isinstance(bias, Tensor) and bias.numel() else None
    queries, keys = query.shape[2], key.shape[2]
    mask = given.get("custom_mask_type", 0)
    causal = bool(given.get("is_causal", mask))
    left, right = (-1 if given.get(name) is None else given[name] for name in ("window_size_left", "window_size_right"))
    if given.get("window_size"):  # the memory-efficient kernel counts the query itself
        left = given["window_size"] - 1
    if not causal and left < 0 and right < 0:
        return own
    offset = 0 if mask == FROM_TOP_LEFT else keys - queries
    distance = torch.arange(keys) - torch.arange(queries)[:, None] - offset
    hidden = distance > (0 if causal else right if right >= 0 else keys)
    if left >= 0:
        hidden = hidden | (distance < -left)
    masked = torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)
    return masked if own is None else own + masked


NAMES = tuple(f"aten::_{kind}_attention_{way}" for kind in ("flash", "efficient") for way in ("forward", "backward"))
HANDLERS = dict.fromkeys(NAMES, run)
"""Operators with handlers of their own."""
VALUES = dict.fromkeys(NAMES, values)
"""What computes operators for which the CPU has no kernel, for a replay that has all the rest."""
