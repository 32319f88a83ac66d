"""`xformers.ops.fmha`: memory-efficient attention."""

from __future__ import annotations

from typing import NoReturn

import torch

from windtunnel.libraries import refuse, unanswered

from ._checks import validate
from .attn_bias import (
    AttentionBias,
    BlockDiagonalMask,
    LowerTriangularFromBottomRightMask,
    LowerTriangularMask,
)

LIBRARY = "xformers 0.0.31"
Tensor = torch.Tensor
aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
TOP_LEFT, BOTTOM_RIGHT = 1, 2
"""Causal masks of the memory-efficient kernel."""
ANSWERED = (LowerTriangularMask, LowerTriangularFromBottomRightMask, BlockDiagonalMask)
__all__ = ["AttentionBias", "memory_efficient_attention"]


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "xformers.ops.fmha", name)


def _check(query: Tensor, key: Tensor, value: Tensor, bias: object, op: object, output_dtype: object) -> None:
    if op is not None or output_dtype is not None:
        unanswered(LIBRARY, f"memory_efficient_attention with {'op' if op is not None else 'output_dtype'}")
    if not (query.dim() == key.dim() == value.dim()) or query.dim() not in (3, 4):
        unanswered(
            LIBRARY, f"memory_efficient_attention of {query.dim()} dimensions", "give 3 or 4, of queries and keys"
        )
    if bias is not None and not isinstance(bias, (Tensor, *ANSWERED)):
        unanswered(LIBRARY, f"the bias {type(bias).__name__}", "give a tensor, or a mask that is answered")
    if not query.is_cuda:
        raise NotImplementedError("No operator found for `memory_efficient_attention_forward` with inputs on the CPU")


def _causal(bias: object) -> int:
    """How the kernel masks: 0, or one of its two causal masks."""
    if isinstance(bias, LowerTriangularMask):
        return TOP_LEFT
    if isinstance(bias, LowerTriangularFromBottomRightMask):
        return BOTTOM_RIGHT
    causal = isinstance(bias, BlockDiagonalMask) and bias.causal
    return TOP_LEFT * causal


def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | AttentionBias | None = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: object = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """Attention over [batch, tokens, heads, width], or [batch, tokens, width] of one head."""
    _check(query, key, value, attn_bias, op, output_dtype)
    validate(query, key, value, attn_bias, p)
    if query.dim() == 3:
        query, key, value = (tensor[:, :, None] for tensor in (query, key, value))
        bias = attn_bias[:, None] if isinstance(attn_bias, Tensor) and attn_bias.dim() == 3 else attn_bias
        return memory_efficient_attention(query, key, value, bias, p, scale)[:, :, 0]
    mask = _causal(attn_bias)
    texts = isinstance(attn_bias, BlockDiagonalMask)
    aligned = attn_bias.q_seqlen == attn_bias.kv_seqlen if texts else query.shape[1] == key.shape[1]  # type: ignore[union-attr]
    modern = torch.cuda.get_device_capability(query.device) >= (8, 0)
    flash = modern and query.dtype in HALVES and query.shape[-1] <= 256 and query.shape[-1] % 8 == 0
    if flash and not isinstance(attn_bias, Tensor) and (mask != TOP_LEFT or aligned):
        return _by_flash(query, key, value, attn_bias, p, scale, mask > 0)
    if isinstance(attn_bias, Tensor):
        attn_bias = attn_bias.expand(query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    begins: tuple[Tensor | None, Tensor | None] = (None, None)
    longest: tuple[int | None, int | None] = (None, None)
    if isinstance(attn_bias, BlockDiagonalMask):
        begins, longest = attn_bias.begins(query.device), (max(attn_bias.q_seqlen), max(attn_bias.kv_seqlen))
    found: Tensor = aten._efficient_attention_forward(
        query, key, value, attn_bias if isinstance(attn_bias, Tensor) else None, *begins, *longest, p, mask,
        compute_log_sumexp=True, scale=scale,
    )[0]  # fmt: skip
    return found


def _by_flash(
    query: Tensor, key: Tensor, value: Tensor, bias: object, p: float, scale: float | None, causal: bool
) -> Tensor:
    from windtunnel.libraries.flash_attn import flash_attn_func, flash_attn_varlen_func

    if not isinstance(bias, BlockDiagonalMask):
        return flash_attn_func(query, key, value, p, scale, causal)  # type: ignore[return-value]
    q, k, v = (tensor.flatten(0, 1) for tensor in (query, key, value))
    begins_q, begins_k = bias.begins(query.device)
    longest_q, longest_k = max(bias.q_seqlen), max(bias.kv_seqlen)
    out = flash_attn_varlen_func(q, k, v, begins_q, begins_k, longest_q, longest_k, p, scale, causal)
    assert isinstance(out, Tensor)
    return out.view(query.shape)
