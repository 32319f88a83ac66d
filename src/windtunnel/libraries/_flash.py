"""Flash attention as the libraries call it: PyTorch's own kernels, keeping what the libraries keep."""

from __future__ import annotations

import torch
from torch.nn import functional as F

Tensor = torch.Tensor
aten = torch.ops.aten


def padded(tensor: Tensor) -> Tensor:
    """The head's width made a multiple of eight, as the library does it."""
    rest = tensor.shape[-1] % 8
    return F.pad(tensor, [0, 8 - rest]) if rest else tensor


class _Attention(torch.autograd.Function):
    """PyTorch's kernel: dense tensors, or texts of several lengths where `cu_q` says where they begin."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, q, k, v, cu_q, cu_k, most_q, most_k, p, scale, causal, window
    ):
        width = q.shape[-1]
        q, k, v = padded(q), padded(k), padded(v)
        left, right = (None if side < 0 else side for side in window)
        out, lse, *random, _ = aten._flash_attention_forward(
            q, k, v, cu_q, cu_k, most_q, most_k, p, causal, False,
            scale=scale, window_size_left=left, window_size_right=right,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, lse, cu_q, cu_k, *random)
        ctx.told = most_q, most_k, p, scale, causal, left, right, width
        ctx.mark_non_differentiable(lse)
        return out[..., :width], lse

    @staticmethod
    def backward(ctx, grad, *others):  # type: ignore[no-untyped-def]
        q, k, v, out, lse, cu_q, cu_k, seed, unused = ctx.saved_tensors
        most_q, most_k, p, scale, causal, left, right, width = ctx.told
        found = aten._flash_attention_backward(
            padded(grad.contiguous()), q, k, v, out, lse, cu_q, cu_k, most_q, most_k, p, causal, seed, unused,
            scale=scale, window_size_left=left, window_size_right=right,
        )  # fmt: skip
        return (*(one[..., :width] for one in found), *[None] * 8)


def bounded(window: tuple[int, int], causal: bool) -> tuple[int, int]:
    """How many tokens to its left and right each sees (-1: all); of a causal one none to its right."""
    left, right = window
    return (left, 0) if causal else (left, right)


def attention(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, cu_k: Tensor | None, most_q: int, most_k: int, p: float,
    scale: float, causal: bool, window: tuple[int, int],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(result, logarithms of the sums) of [batch, tokens, heads, width], or of [tokens, heads, width] with `cu_q`."""
    result: tuple[Tensor, Tensor] = _Attention.apply(q, k, v, cu_q, cu_k, most_q, most_k, p, scale, causal, window)
    return result
