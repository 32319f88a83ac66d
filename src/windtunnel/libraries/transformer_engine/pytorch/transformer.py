"""`transformer_engine.pytorch.transformer`: a transformer's layer."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import nn
from torch.nn import functional as F

from windtunnel.described import kernel
from windtunnel.libraries import refuse

from ..common.recipe import LIBRARY
from .attention import MultiheadAttention
from .attention.dot_product_attention import Masks, Window
from .module import LayerNorm, LayerNormMLP, RMSNorm
from .module.base import Device, Initialize, only_one_rank

Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "transformer_engine.pytorch.transformer", name)


@kernel("transformer_engine::bias_add", like="aten::add", define="(Tensor x, Tensor? bias, Tensor residual) -> Tensor")
def _bias_add(x, bias, residual):  # type: ignore[no-untyped-def]
    return residual + (x if bias is None else x + bias)


def _added(x: Tensor, bias: Tensor | None, residual: Tensor, p: float, training: bool) -> Tensor:
    """The residual and x with its bias, of which dropout leaves a part."""
    if p and training:
        return residual + F.dropout(x if bias is None else x + bias, p)
    out: Tensor = torch.ops.transformer_engine.bias_add(x, bias, residual)
    return out


class TransformerLayer(nn.Module):
    """Self-attention and what follows it."""

    def __init__(
        self, hidden_size: int, ffn_hidden_size: int, num_attention_heads: int, num_gqa_groups: int | None = None,
        layernorm_epsilon: float = 1e-5, hidden_dropout: float = 0.1, attention_dropout: float = 0.1,
        init_method: Initialize | None = None, output_layer_init_method: Initialize | None = None,
        layer_number: int | None = None, kv_channels: int | None = None, self_attn_mask_type: str = "causal",
        window_size: Window | None = None, bottom_right_diagonal: bool | None = None,
        enc_dec_attn_mask_type: str = "no_mask", enc_dec_bottom_right_diagonal: bool | None = None,
        enc_dec_window_size: Window | None = None, tp_group: object = None, tp_size: int = 1,
        params_dtype: torch.dtype | None = None, get_rng_state_tracker: object = None,
        fuse_wgrad_accumulation: bool = False, seq_length: int | None = None, micro_batch_size: int | None = None,
        sequence_parallel: bool = False, apply_residual_connection_post_layernorm: bool = False,
        output_layernorm: bool = False, parallel_attention_mlp: bool = False, layer_type: str = "encoder",
        drop_path_rate: float = 0.0, set_parallel_mode: bool = False, fuse_qkv_params: bool = False,
        rotary_pos_interleaved: bool = False, zero_centered_gamma: bool = False, qkv_weight_interleaved: bool = True,
        ub_tp_comm_overlap: bool = False, ub_overlap_ag: bool = True, ub_overlap_rs: bool = True,
        ub_overlap_rs_dgrad: bool = False, ub_bulk_dgrad: bool = True, ub_bulk_wgrad: bool = True, bias: bool = True,
        activation: str = "gelu", activation_params: dict[str, float] | None = None,
        normalization: str = "LayerNorm", device: Device = "cuda", attn_input_format: str = "sbhd",
        name: str | None = None, qk_norm_type: str | None = None, qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False, softmax_type: str = "vanilla",
    ) -> None:  # fmt: skip
        super().__init__()
        unknown = {
            'layer_type "decoder"': layer_type != "encoder", "drop_path_rate": drop_path_rate,
            "parallel_attention_mlp": parallel_attention_mlp, "ub_tp_comm_overlap": ub_tp_comm_overlap,
        }  # fmt: skip
        only_one_rank("TransformerLayer", tp_group, tp_size, unknown)
        self.hidden_dropout, self.self_attn_mask_type = hidden_dropout, self_attn_mask_type
        self.window_size, self.post_norm = window_size, apply_residual_connection_post_layernorm
        common = {
            "init_method": init_method, "output_layer_init_method": output_layer_init_method, "bias": bias,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation, "params_dtype": params_dtype, "return_bias": True,
            "return_layernorm_output": self.post_norm, "zero_centered_gamma": zero_centered_gamma,
            "normalization": normalization, "device": device,
        }  # fmt: skip
        self.self_attention = MultiheadAttention(
            hidden_size, num_attention_heads, kv_channels, attention_dropout, layernorm_epsilon,
            num_gqa_groups=num_gqa_groups, fuse_qkv_params=fuse_qkv_params, input_layernorm=not output_layernorm,
            qkv_weight_interleaved=qkv_weight_interleaved, rotary_pos_interleaved=rotary_pos_interleaved,
            qkv_format=attn_input_format, qk_norm_type=qk_norm_type, qk_norm_eps=qk_norm_eps,
            qk_norm_before_rope=qk_norm_before_rope, softmax_type=softmax_type, **common,  # type: ignore[arg-type]
        )  # fmt: skip
        self.layernorm_mlp = LayerNormMLP(
            hidden_size, ffn_hidden_size, layernorm_epsilon, activation=activation,
            activation_params=activation_params, **common,  # type: ignore[arg-type]
        )  # fmt: skip
        self.layernorm: nn.Module | None = None
        if output_layernorm:
            self.layernorm = (RMSNorm if normalization == "RMSNorm" else LayerNorm)(
                hidden_size, layernorm_epsilon, None, params_dtype, zero_centered_gamma, device=device
            )

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Masks = None,
        self_attn_mask_type: str | None = None,
        window_size: Window | None = None,
        bottom_right_diagonal: bool | None = None,
        encoder_output: Tensor | None = None,
        enc_dec_attn_mask: Masks = None,
        enc_dec_attn_mask_type: str | None = None,
        enc_dec_window_size: Window | None = None,
        enc_dec_bottom_right_diagonal: bool | None = None,
        is_first_microbatch: bool | None = None,
        checkpoint_core_attention: bool = False,
        inference_params: object = None,
        rotary_pos_emb: Tensor | tuple[Tensor, Tensor] | None = None,
        **others: object,
    ) -> Tensor:
        """The layer's result, of the shape that it is given."""
        x = hidden_states.contiguous()
        attended, bias, *norm = self.self_attention(
            x, attention_mask, encoder_output, self_attn_mask_type or self.self_attn_mask_type,
            window_size or self.window_size, is_first_microbatch=is_first_microbatch,
            checkpoint_core_attention=checkpoint_core_attention, inference_params=inference_params,
            rotary_pos_emb=rotary_pos_emb, **others,
        )  # fmt: skip
        x = _added(attended, bias, norm[0] if norm else x, self.hidden_dropout, self.training)
        out, bias, *norm = self.layernorm_mlp(x, is_first_microbatch)
        x = _added(out, bias, norm[0] if norm else x, self.hidden_dropout, self.training)
        return x if self.layernorm is None else self.layernorm(x)
