"""`xformers.ops.fmha`: memory-efficient attention."""

from __future__ import annotations

from typing import NoReturn

import torch

from windtunnel.libraries import refuse, unanswered

from . import attn_bias, cutlass, flash
from ._checks import validate
from ._operators import Cutlass, Flash, Inputs, _Operator, chosen, require_backward
from .attn_bias import AttentionBias, BlockDiagonalMask, LowerTriangularMask

LIBRARY = "xformers 0.0.31"
Tensor = torch.Tensor
Bias = Tensor | AttentionBias | None
AttentionOp = tuple[type[_Operator] | None, type | None]
MemoryEfficientAttentionCutlassOp = (cutlass.FwOp, cutlass.BwOp)
MemoryEfficientAttentionFlashAttentionOp = (flash.FwOp, flash.BwOp)
ALL_FW_OPS = [Cutlass, Flash]
__all__ = [
    "AttentionBias", "AttentionOp", "BlockDiagonalMask", "LowerTriangularMask", "MemoryEfficientAttentionCutlassOp",
    "MemoryEfficientAttentionFlashAttentionOp", "attn_bias", "cutlass", "flash", "memory_efficient_attention",
    "memory_efficient_attention_forward", "memory_efficient_attention_forward_requires_grad",
]  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "xformers.ops.fmha", name)


def _inputs(
    query: Tensor, key: Tensor, value: Tensor, bias: Bias, p: float, scale: float | None, output_dtype: object
) -> Inputs:
    if output_dtype not in (None, query.dtype):
        unanswered(LIBRARY, "memory_efficient_attention with output_dtype")
    if (bias is not None and not isinstance(bias, (Tensor, AttentionBias))) or type(bias) is AttentionBias:
        unanswered(LIBRARY, f"the bias {type(bias).__name__}", "give a tensor, or a mask that is answered")
    if not query.is_cuda:
        raise NotImplementedError("No operator found for `memory_efficient_attention_forward` with inputs on the CPU")
    validate(query, key, value, bias, p)
    if query.dim() == 3:
        query, key, value = (tensor[:, :, None] for tensor in (query, key, value))
        bias = bias[:, None] if isinstance(bias, Tensor) and bias.dim() == 3 else bias
    if isinstance(bias, Tensor) and query.dim() == 4:
        bias = bias.expand(query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    return Inputs(query, key, value, bias, p, scale)


def _attended(inputs: Inputs, op: object, dims: int, keeps: bool = False) -> tuple[Tensor, Tensor]:
    """The result, and the logarithms of the sums where gradients need them or the program `keeps` them."""
    if op is not None and not (isinstance(op, type) and issubclass(op, _Operator)):
        unanswered(LIBRARY, f"the operator {op!r}", "leave op out, or give that of flash or of cutlass")
    needs = torch.is_grad_enabled() and any(one.requires_grad for one in inputs[:3])
    kernel = chosen(inputs, op)
    if needs:
        require_backward(inputs, kernel)
    out, lse = kernel.apply(inputs, needs or keeps)
    return (out[:, :, 0] if dims == 3 else out), lse


def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | AttentionBias | None = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: AttentionOp | None = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """Attention over [batch, tokens, heads, width], [batch, tokens, width] of one head, or groups of heads.

    Those are [batch, tokens, groups, heads, width], of which keys and values are broadcast along the heads.
    """
    inputs = _inputs(query, key, value, attn_bias, p, scale, output_dtype)
    return _attended(inputs, None if op is None else op[0], query.dim())[0]


def memory_efficient_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | AttentionBias | None = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: type[_Operator] | None = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """The same without gradients, and with the kernel of the forward pass as `op`."""
    with torch.no_grad():
        inputs = _inputs(query, key, value, attn_bias, p, scale, output_dtype)
        return _attended(inputs, op, query.dim())[0]


def memory_efficient_attention_forward_requires_grad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | AttentionBias | None = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: type[_Operator] | None = None,
    output_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """The same with the logarithms of the sums, [batch, heads, queries] or of all texts in a row."""
    if p != 0.0:
        raise NotImplementedError(
            "dropout is not supported on the non-autograd API."
            " If you want to use dropout, please call `memory_efficient_attention` directly"
        )
    with torch.no_grad():
        inputs = _inputs(query, key, value, attn_bias, p, scale, output_dtype)
        if inputs.query.dim() == 5:
            unanswered(LIBRARY, "logarithms of groups of heads", "give [batch, tokens, heads, width]")
        out, lse = _attended(inputs, op, query.dim(), keeps=True)
        return out, lse[None] if lse.dim() == 2 else lse
