"""`transformer_engine.pytorch.attention.multi_head_attention`: self-attention with its products."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import nn

from windtunnel.libraries import refuse, unanswered

from ...common.recipe import LIBRARY
from ..module.base import Device, Initialize, only_one_rank
from ..module.layernorm import LayerNorm, RMSNorm
from ..module.linear import LayerNormLinear, Linear
from .dot_product_attention import DotProductAttention, Masks, Window
from .rope import apply_rotary_pos_emb

Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "transformer_engine.pytorch.attention.multi_head_attention", name)


class MultiheadAttention(nn.Module):
    """Queries, keys and values of one product, after a norm or not, attention, and a product."""

    def __init__(
        self, hidden_size: int, num_attention_heads: int, kv_channels: int | None = None,
        attention_dropout: float = 0.1, layernorm_epsilon: float = 1e-5, init_method: Initialize | None = None,
        output_layer_init_method: Initialize | None = None, layer_number: int | None = None,
        attn_mask_type: str = "causal", window_size: Window | None = None, bottom_right_diagonal: bool | None = None,
        tp_group: object = None, tp_size: int = 1, num_gqa_groups: int | None = None,
        fuse_wgrad_accumulation: bool = False, get_rng_state_tracker: object = None, sequence_parallel: bool = False,
        params_dtype: torch.dtype | None = None, return_bias: bool = False, return_layernorm_output: bool = False,
        input_layernorm: bool = False, attention_type: str = "self", set_parallel_mode: bool = False,
        fuse_qkv_params: bool = False, zero_centered_gamma: bool = False, qkv_weight_interleaved: bool = True,
        rotary_pos_interleaved: bool = False, bias: bool = True, normalization: str = "LayerNorm",
        device: Device = "cuda", qkv_format: str = "sbhd", name: str | None = None, qk_norm_type: str | None = None,
        qk_norm_eps: float = 1e-6, qk_norm_before_rope: bool = False, softmax_type: str = "vanilla",
        seq_length: int | None = None, micro_batch_size: int | None = None, **others: object,
    ) -> None:  # fmt: skip
        super().__init__()
        cross = attention_type != "self"
        only_one_rank("MultiheadAttention", tp_group, tp_size, {**others, "attention between two texts": cross})
        self.qkv_format, self.attn_mask_type, self.window_size = qkv_format, attn_mask_type, window_size
        self.heads, self.groups = num_attention_heads, num_gqa_groups or num_attention_heads
        self.width = kv_channels or hidden_size // num_attention_heads
        self.interleaved = qkv_weight_interleaved and fuse_qkv_params
        self.rotary_pos_interleaved, self.qk_norm_before_rope = rotary_pos_interleaved, qk_norm_before_rope
        self.input_layernorm, self.return_layernorm_output = input_layernorm, return_layernorm_output
        self.return_bias = return_bias
        inner, outer = self.width * self.heads, self.width * self.groups
        split = None if fuse_qkv_params else {"query": inner, "key": outer, "value": outer}
        common = {
            "sequence_parallel": sequence_parallel, "fuse_wgrad_accumulation": fuse_wgrad_accumulation, "bias": bias,
            "params_dtype": params_dtype, "device": device,
        }  # fmt: skip
        given = {"init_method": init_method, "parameters_split": split, **common}
        if input_layernorm:
            self.layernorm_qkv = LayerNormLinear(
                hidden_size, inner + 2 * outer, eps=layernorm_epsilon, normalization=normalization,
                return_layernorm_output=return_layernorm_output, zero_centered_gamma=zero_centered_gamma, **given,  # type: ignore[arg-type]
            )  # fmt: skip
        else:
            self.qkv = Linear(hidden_size, inner + 2 * outer, **given)  # type: ignore[arg-type]
        self.q_norm, self.k_norm = (self._norm(qk_norm_type, qk_norm_eps, device, params_dtype) for _ in range(2))
        self.core_attention = DotProductAttention(
            num_attention_heads, self.width, self.groups, attention_dropout, qkv_format, softmax_type=softmax_type
        )
        self.proj = Linear(
            inner, hidden_size, init_method=output_layer_init_method, return_bias=return_bias, **common  # type: ignore[arg-type]
        )  # fmt: skip

    def _norm(self, kind: str | None, eps: float, device: Device, dtype: torch.dtype | None) -> nn.Module | None:
        if kind is None:
            return None
        if kind not in ("RMSNorm", "LayerNorm"):
            unanswered(LIBRARY, f"qk_norm_type {kind}")
        return (RMSNorm if kind == "RMSNorm" else LayerNorm)(self.width, eps, device=device, params_dtype=dtype)

    def _split(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of their common product, [..., heads, width]."""
        ratio = self.heads // self.groups
        if self.interleaved:
            parts = mixed.unflatten(-1, (self.groups, ratio + 2, self.width)).split((ratio, 1, 1), -2)
            q, k, v = (part.flatten(-3, -2) for part in parts)
            return q, k, v
        parts = mixed.split((self.heads * self.width, self.groups * self.width, self.groups * self.width), -1)
        q, k, v = (part.unflatten(-1, (-1, self.width)) for part in parts)
        return q, k, v

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Masks = None,
        encoder_output: Tensor | None = None,
        attn_mask_type: str | None = None,
        window_size: Window | None = None,
        bottom_right_diagonal: bool | None = None,
        is_first_microbatch: bool | None = None,
        checkpoint_core_attention: bool = False,
        inference_params: object = None,
        rotary_pos_emb: Tensor | tuple[Tensor, Tensor] | None = None,
        **others: object,
    ) -> Tensor | tuple[Tensor | None, ...]:
        """The result; with its bias and the norm where they were asked for."""
        unknown = {"encoder_output": encoder_output is not None, "inference_params": inference_params}
        only_one_rank("MultiheadAttention", None, 1, unknown)
        norm = None
        if self.input_layernorm:
            found = self.layernorm_qkv(hidden_states, is_first_microbatch)
            mixed, norm = found if self.return_layernorm_output else (found, None)
        else:
            mixed = self.qkv(hidden_states, is_first_microbatch)
        q, k, v = self._split(mixed)
        if self.q_norm is not None and self.k_norm is not None and self.qk_norm_before_rope:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotary_pos_emb is not None:
            both = rotary_pos_emb if isinstance(rotary_pos_emb, tuple) else (rotary_pos_emb, rotary_pos_emb)
            turned = [
                apply_rotary_pos_emb(one, angles, self.qkv_format, interleaved=self.rotary_pos_interleaved)
                for one, angles in zip((q, k), both, strict=True)
            ]
            q, k = turned
        if self.q_norm is not None and self.k_norm is not None and not self.qk_norm_before_rope:
            q, k = self.q_norm(q), self.k_norm(k)
        attended = self.core_attention(
            q, k, v, attention_mask, attn_mask_type=attn_mask_type or self.attn_mask_type,
            window_size=window_size or self.window_size, checkpoint_core_attention=checkpoint_core_attention, **others,
        )  # fmt: skip
        out = self.proj(attended, is_first_microbatch)
        results = out if isinstance(out, tuple) else (out,)
        if norm is not None:
            results = (*results, norm)
        return results if len(results) > 1 else results[0]
