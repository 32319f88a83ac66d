"""Flash attention as xformers' operators, which programs name where they say what not to compute again."""

from __future__ import annotations

import torch

Tensor = torch.Tensor
aten = torch.ops.aten


@torch.library.custom_op("xformers_flash::flash_fwd", mutates_args=(), device_types=["cuda"])
def flash_fwd(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None,
    seqused_k: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, p: float, softmax_scale: float, is_causal: bool,
    window_left: int, window_right: int, return_softmax: bool, block_tables: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The result, the logarithms of the sums, and the state of the random numbers."""
    left, right = (None if side < 0 else side for side in (window_left, window_right))
    out, lse, random, _, _ = aten._flash_attention_forward(
        query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, p, is_causal, False,
        scale=softmax_scale, window_size_left=left, window_size_right=right, seqused_k=seqused_k,
    )  # fmt: skip
    return out, lse, random


@torch.library.custom_op("xformers_flash::flash_bwd", mutates_args=(), device_types=["cuda"])
def flash_bwd(
    grads_share_storage: bool, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor,
    cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, p: float,
    softmax_scale: float, is_causal: bool, window_left: int, window_right: int, rng_state: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of queries, keys and values."""
    left, right = (None if side < 0 else side for side in (window_left, window_right))
    found: tuple[Tensor, Tensor, Tensor] = aten._flash_attention_backward(
        grad, query, key, value, out, lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, p, is_causal,
        rng_state, rng_state.new_empty(0), scale=softmax_scale, window_size_left=left, window_size_right=right,
    )  # fmt: skip
    return found


@flash_fwd.register_fake
def _(query, key, value, cu_seqlens_q, *others):  # type: ignore[no-untyped-def]
    batch = () if cu_seqlens_q is not None else query.shape[:1]
    shape = (*batch, query.shape[-2], query.shape[-3])
    lse = query.new_empty(shape, dtype=torch.float32)
    return torch.empty_like(query), lse, query.new_empty(2, dtype=torch.uint64)


@flash_bwd.register_fake
def _(grads_share_storage, grad, query, key, value, *others):  # type: ignore[no-untyped-def]
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, cu_q, cu_k, used, most_q, most_k, p, *told):  # type: ignore[no-untyped-def]
        out, lse, random = torch.ops.xformers_flash.flash_fwd(
            q, k, v, cu_q, cu_k, used, most_q, most_k, p, *told, False, None
        )
        ctx.save_for_backward(q, k, v, out, lse, cu_q, cu_k, random)
        ctx.told = most_q, most_k, p, *told
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx, grad, *others):  # type: ignore[no-untyped-def]
        *saved, random = ctx.saved_tensors
        found = torch.ops.xformers_flash.flash_bwd(False, grad.contiguous(), *saved, *ctx.told, random)
        return (*found, *[None] * 10)


def attention(
    query: Tensor, key: Tensor, value: Tensor, cu_q: Tensor | None, cu_k: Tensor | None, used: Tensor | None,
    most_q: int, most_k: int, p: float, scale: float, causal: bool, window: tuple[int, int],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(result, logarithms of the sums) of [batch, tokens, heads, width], or of [tokens, heads, width] with `cu_q`."""
    texts = cu_q, cu_k, used, most_q, most_k
    result: tuple[Tensor, Tensor] = _FlashAttention.apply(query, key, value, *texts, p, scale, causal, *window)
    return result
