"""`flash_attn.layers.rotary`: rotary embeddings in one kernel, which keeps the angles alone."""

from __future__ import annotations

from itertools import pairwise
from typing import NoReturn

import torch
from torch import nn

from windtunnel.described import kernel
from windtunnel.libraries import refuse

from ._rotated import rotated

Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse("flash_attn 2.8.3", "flash_attn.layers.rotary", name)


def _turned(
    x: Tensor, cos: Tensor, sin: Tensor, offset: int, offsets: Tensor | None, begins: Tensor | None,
    interleaved: bool, backwards: bool,
) -> Tensor:  # fmt: skip
    if x.is_meta:
        return torch.empty_like(x)
    sin = -sin if backwards else sin
    start = offset if offsets is None else offsets
    if begins is None:
        return rotated(x, cos, sin, start, interleaved)
    starts = start if isinstance(start, Tensor) else torch.full((len(begins) - 1,), start)
    edges = begins.tolist()
    texts = [
        rotated(x[None, first:last], cos, sin, starts[place], interleaved)[0]
        for place, (first, last) in enumerate(pairwise(edges))
    ]
    return torch.cat(texts)


SCHEMA = "Tensor cos, Tensor sin, int offset, Tensor? offsets, Tensor? begins, bool interleaved, bool backwards) -> "


@kernel("flash_attn::rotary", like="aten::mul", define=f"(Tensor x, {SCHEMA}Tensor")
def _rotary(x, cos, sin, offset, offsets, begins, interleaved, backwards):  # type: ignore[no-untyped-def]
    return _turned(x, cos, sin, offset, offsets, begins, interleaved, backwards).contiguous()


@kernel("flash_attn::rotary_", like="aten::mul", define=f"(Tensor(a!) x, {SCHEMA}()")
def _rotary_(x, cos, sin, offset, offsets, begins, interleaved, backwards):  # type: ignore[no-untyped-def]
    x.copy_(_turned(x, cos, sin, offset, offsets, begins, interleaved, backwards))


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cos, sin, interleaved, inplace, offsets, begins):  # type: ignore[no-untyped-def]
        told = (offsets, None) if isinstance(offsets, int) else (0, offsets)
        ctx.save_for_backward(cos, sin, begins, told[1])
        ctx.told = told[0], interleaved, inplace
        if inplace:
            torch.ops.flash_attn.rotary_(x, cos, sin, *told, begins, interleaved, False)
            ctx.mark_dirty(x)
            return x
        return torch.ops.flash_attn.rotary(x, cos, sin, *told, begins, interleaved, False)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        cos, sin, begins, offsets = ctx.saved_tensors
        offset, interleaved, inplace = ctx.told
        told = cos, sin, offset, offsets, begins, interleaved, True
        if inplace:
            torch.ops.flash_attn.rotary_(grad, *told)
            return grad, *[None] * 6
        return torch.ops.flash_attn.rotary(grad, *told), *[None] * 6


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """[batch, tokens, heads, width], or [all tokens, heads, width] of texts; cos and sin are [tokens, width / 2]."""
    wide = 2 * cos.shape[-1]
    assert wide <= x.shape[-1], "rotary_dim must be <= headdim"
    found: Tensor = _Apply.apply(x, cos, sin, interleaved, inplace, seqlen_offsets, cu_seqlens)
    return found


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Tensor | None = None,
    sin_k: Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
    num_heads_q: int | None = None,
) -> Tensor:
    """Queries and keys of [batch, tokens, 3, heads, width], or of [batch, tokens, heads of all, width], in place."""
    if qkv.dim() == 5:
        q, k = qkv[:, :, 0], qkv[:, :, 1]
    else:
        assert num_heads_q is not None
        heads = (qkv.shape[2] - num_heads_q) // 2
        q, k = qkv[:, :, :num_heads_q], qkv[:, :, num_heads_q : num_heads_q + heads]
    others = (cos, sin) if cos_k is None else (cos_k, sin_k)
    return _InPlace.apply(qkv, q, k, (cos, sin), others, interleaved, seqlen_offsets)


def apply_rotary_emb_kv_(
    kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, seqlen_offsets: int | Tensor = 0
) -> Tensor:
    """Keys of [batch, tokens, 2, heads, width], in place."""
    return _InPlace.apply(kv, kv[:, :, 0], None, (cos, sin), (cos, sin), interleaved, seqlen_offsets)  # type: ignore[no-any-return]


class _InPlace(torch.autograd.Function):
    """One or two parts of a packed tensor, each by a kernel; the gradient turns the same parts back."""

    @staticmethod
    def forward(ctx, packed, first, second, angles, others, interleaved, offsets):  # type: ignore[no-untyped-def]
        told = (offsets, None) if isinstance(offsets, int) else (0, offsets)
        ctx.save_for_backward(*angles, *others, told[1])
        ctx.told = told[0], interleaved
        ctx.parts = [
            (part.storage_offset() - packed.storage_offset(), part.shape, part.stride())
            for part in (first, second)
            if part is not None
        ]
        for part, pair in ((first, angles), (second, others)):
            if part is not None:
                torch.ops.flash_attn.rotary_(part, *pair, *told, None, interleaved, False)
        ctx.mark_dirty(packed)
        return packed

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        *angles, offsets = ctx.saved_tensors
        offset, interleaved = ctx.told
        grad = grad.contiguous()
        for (start, shape, stride), pair in zip(ctx.parts, (angles[:2], angles[2:]), strict=False):
            part = grad.as_strided(shape, stride, start)
            torch.ops.flash_attn.rotary_(part, *pair, offset, offsets, None, interleaved, True)
        return grad, *[None] * 6


class RotaryEmbedding(nn.Module):
    """The angles of as many tokens as were asked for, and their application to packed tensors."""

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if scale_base is not None:
            from windtunnel.libraries import unanswered

            unanswered("flash_attn 2.8.3", "RotaryEmbedding with scale_base")
        self.dim, self.base, self.interleaved, self.scale_base = dim, float(base), interleaved, None
        steps = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
        self.register_buffer("inv_freq", 1.0 / (self.base ** (steps / dim)), persistent=False)
        self._seq_len_cached = 0
        self._cos_cached: Tensor | None = None
        self._sin_cached: Tensor | None = None

    def _update_cos_sin_cache(
        self, seqlen: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> None:
        known = self._cos_cached
        if known is not None and seqlen <= self._seq_len_cached and known.device == device and known.dtype is dtype:
            return
        self._seq_len_cached = seqlen
        steps = torch.arange(seqlen, device=device, dtype=torch.float32)
        angles = torch.outer(steps, self.inv_freq.to(steps.device))  # type: ignore[arg-type, operator]
        self._cos_cached, self._sin_cached = torch.cos(angles).to(dtype), torch.sin(angles).to(dtype)

    def forward(
        self,
        qkv: Tensor,
        kv: Tensor | None = None,
        seqlen_offset: int | Tensor = 0,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Turn queries and keys; `qkv` packed, or queries beside packed keys and values."""
        tokens = qkv.shape[1]
        longest = (
            max_seqlen if max_seqlen is not None else tokens + (seqlen_offset if isinstance(seqlen_offset, int) else 0)
        )
        self._update_cos_sin_cache(longest, qkv.device, qkv.dtype)
        cos, sin = self._cos_cached, self._sin_cached
        assert cos is not None
        assert sin is not None
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv, cos, sin, interleaved=self.interleaved, seqlen_offsets=seqlen_offset, num_heads_q=num_heads_q
            )
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        return q, apply_rotary_emb_kv_(kv, cos, sin, self.interleaved, seqlen_offset)
