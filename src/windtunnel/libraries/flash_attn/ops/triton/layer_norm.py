"""`flash_attn.ops.triton.layer_norm`: norms with a residual, and RMSNorm."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import nn

from windtunnel.libraries import refuse

from .._norms import norm as _norm

Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse("flash_attn 2.8.3", "flash_attn.ops.triton.layer_norm", name)


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """A layer norm, or an RMS norm, of x + residual."""
    return _norm(
        x, weight, bias, residual, eps, rms=is_rms_norm, prenorm=prenorm, residual_in_fp32=residual_in_fp32,
        zero_centred=zero_centered_weight, out=out_dtype, x1=x1, weight1=weight1, bias1=bias1, dropout_p=dropout_p,
        rowscale=rowscale, return_dropout_mask=return_dropout_mask, out_tensor=out, residual_out=residual_out,
    )  # fmt: skip


def rms_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """An RMS norm of x + residual."""
    return layer_norm_fn(
        x, weight, bias, residual, x1, weight1, bias1, eps, dropout_p, rowscale, prenorm, residual_in_fp32,
        zero_centered_weight, True, return_dropout_mask, out_dtype, out, residual_out,
    )  # fmt: skip


class RMSNorm(nn.Module):
    """An RMS norm with a weight."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        dropout_p: float = 0.0,
        zero_centered_weight: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps, self.p, self.zero_centered_weight = eps, dropout_p, zero_centered_weight
        made = torch.zeros if zero_centered_weight else torch.ones
        self.weight = nn.Parameter(made(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(
        self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The norm of x + residual."""
        return rms_norm_fn(
            x, self.weight, None, residual, eps=self.eps, dropout_p=self.p if self.training else 0.0, prenorm=prenorm,
            residual_in_fp32=residual_in_fp32, zero_centered_weight=self.zero_centered_weight,
        )  # fmt: skip
