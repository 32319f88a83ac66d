"""`transformer_engine.pytorch.attention.dot_product_attention`: attention alone."""

from __future__ import annotations

import math
from typing import NoReturn

import torch
from torch import nn
from torch.nn import functional as F

from windtunnel.libraries import refuse, unanswered
from windtunnel.libraries._flash import attention

from ...common.recipe import LIBRARY
from ..module.base import only_one_rank

Tensor = torch.Tensor
Window = tuple[int, int]
Masks = Tensor | tuple[Tensor, Tensor] | None
HALVES = (torch.float16, torch.bfloat16)
MASKS = (
    "no_mask", "padding", "causal", "padding_causal", "causal_bottom_right", "padding_causal_bottom_right", "arbitrary",
)  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "transformer_engine.pytorch.attention.dot_product_attention", name)


class DotProductAttention(nn.Module):
    """Attention of queries, keys and values that are given."""

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: Window | None = None,
        bottom_right_diagonal: bool | None = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: object = None,
        tp_group: object = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: object = None,
        cp_global_ranks: object = None,
        cp_stream: object = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        return_max_logit: bool | None = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        others = {"cp_group": cp_group, "softmax_type": softmax_type != "vanilla", "return_max_logit": return_max_logit}
        only_one_rank("DotProductAttention", tp_group, tp_size, others)
        self.num_attention_heads = num_attention_heads
        self.num_gqa_groups = num_gqa_groups or num_attention_heads
        assert num_attention_heads % self.num_gqa_groups == 0, (
            "The number of attention heads must be divisible by the number of GQA groups!"
        )
        self.attention_dropout, self.qkv_format = attention_dropout, qkv_format
        self.attn_mask_type, self.window_size = _named(attn_mask_type), window_size
        width = kv_channels if isinstance(kv_channels, int) else kv_channels[0]
        self.softmax_scale = 1.0 / math.sqrt(width) if softmax_scale is None else softmax_scale

    def forward(
        self,
        query_layer: Tensor,
        key_layer: Tensor,
        value_layer: Tensor,
        attention_mask: Masks = None,
        qkv_format: str | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: Window | None = None,
        bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        **others: object,
    ) -> Tensor:
        """The result, [tokens, batch, heads * width] in the order that the tensors have."""
        unknown = {**others, "a bias": core_attention_bias_type != "no_bias", "alibi_slopes": alibi_slopes is not None}
        unknown["checkpoint_core_attention"] = checkpoint_core_attention
        unknown["padding between packed texts"] = (cu_seqlens_q_padded, cu_seqlens_kv_padded) != (None, None)
        only_one_rank("DotProductAttention", None, 1, {k: v for k, v in unknown.items() if k != "fast_zero_fill"})
        layout, kind = qkv_format or self.qkv_format, _named(attn_mask_type or self.attn_mask_type)
        window = window_size or self.window_size or (-1, -1)
        q, k, v = query_layer, key_layer, value_layer
        if layout == "thd":
            if cu_seqlens_q is None or cu_seqlens_kv is None:
                raise ValueError("max_seqlen_q/kv must be integers when qkv_format is thd and cu_seqlens are missing")
            if "padding" not in kind:
                raise ValueError("Attention mask type must be padding or padding_causal for qkv_format=thd!")
            lengths = cu_seqlens_q, cu_seqlens_kv, *_longest(cu_seqlens_q, cu_seqlens_kv, max_seqlen_q, max_seqlen_kv)
            return self._flash(q, k, v, "causal" in kind, window, lengths).flatten(-2)
        if layout == "sbhd":
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        causal, square = "causal" in kind, q.shape[1] == k.shape[1]
        plain = kind in ("no_mask", "causal", "causal_bottom_right") and q.dtype in HALVES
        if plain and (not causal or square or "bottom_right" in kind):
            out = self._flash(q, k, v, causal, window, (None, None, q.shape[1], k.shape[1]))
        else:
            if window not in ((-1, -1), (-1, 0)):
                unanswered(LIBRARY, "a window together with a mask, or with tensors that are not in 16 bits")
            out = self._masked(q, k, v, kind, attention_mask, cu_seqlens_q, cu_seqlens_kv)
        return (out.transpose(0, 1) if layout == "sbhd" else out).flatten(-2)

    def _flash(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, window: Window,
        lengths: tuple[Tensor | None, Tensor | None, int, int],
    ) -> Tensor:  # fmt: skip
        p = self.attention_dropout if self.training else 0.0
        sides = (window[0], 0) if causal else window
        return attention(q, k, v, *lengths, p, self.softmax_scale, causal, sides)[0]

    def _masked(
        self, q: Tensor, k: Tensor, v: Tensor, kind: str, mask: Masks, cu_q: Tensor | None, cu_k: Tensor | None
    ) -> Tensor:
        """PyTorch's attention with a mask that is true where keys are left out."""
        out: Tensor | None = None
        if "padding" in kind:
            out = _left_out(q, k, mask, cu_q, cu_k)
        elif kind == "arbitrary":
            assert isinstance(mask, Tensor), "attention_mask must be a tensor for arbitrary masks"
            out = mask
        if "causal" in kind and (out is not None or "bottom_right" in kind):
            shift = k.shape[1] - q.shape[1] if "bottom_right" in kind else 0
            later = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).triu(1 + shift)
            out = later if out is None else out | later
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        found = F.scaled_dot_product_attention(
            q, k, v, None if out is None else ~out, self.attention_dropout if self.training else 0.0,
            is_causal="causal" in kind and out is None, scale=self.softmax_scale,
            enable_gqa=self.num_gqa_groups != self.num_attention_heads,
        )  # fmt: skip
        return found.transpose(1, 2)


def _named(kind: str) -> str:
    """A mask's name, of which there are several spellings."""
    kind = kind.replace(",", "_")
    kind = "padding_causal" if kind == "causal_padding" else kind
    assert kind in MASKS, f"Attention mask type {kind} is not supported!"
    return kind


def _longest(cu_q: Tensor, cu_k: Tensor, most_q: int | None, most_k: int | None) -> tuple[int, int]:
    """The longest text: what is not given is read from the device."""
    found = (
        most if most is not None else int((cu[1:] - cu[:-1]).max()) for cu, most in ((cu_q, most_q), (cu_k, most_k))
    )
    return next(found), next(found)


def _left_out(q: Tensor, k: Tensor, mask: Masks, cu_q: Tensor | None, cu_k: Tensor | None) -> Tensor:
    """[batch, 1, queries or 1, keys], true where a key is padding."""
    if mask is not None:
        return mask[1] if isinstance(mask, tuple) else mask
    if cu_k is None:
        cu_k = cu_q
    if cu_k is None:
        raise ValueError("Please provide attention_mask or cu_seqlens for padding!")
    lengths = cu_k[1:] - cu_k[:-1]
    return (torch.arange(k.shape[1], device=k.device) >= lengths[:, None])[:, None, None]
