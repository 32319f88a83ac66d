"""`flash_attn.ops.rms_norm`: the norm alone, and of a sum with a residual."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import nn

from windtunnel.libraries import refuse

from ._norms import DropoutAddNorm
from ._norms import norm as _norm

Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse("flash_attn 2.8.3", "flash_attn.ops.rms_norm", name)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor | tuple[Tensor, Tensor]:
    """The norm of x's rows."""
    return _norm(x, weight, None, None, epsilon, rms=True)


def dropout_add_rms_norm(
    x0: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    epsilon: float,
    rowscale: Tensor | None = None,
    layerscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The norm of x0 + residual."""
    return _norm(
        x0, weight, bias, residual, epsilon, rms=True, prenorm=prenorm, residual_in_fp32=residual_in_fp32,
        dropout_p=dropout_p, rowscale=rowscale, layerscale=layerscale, return_dropout_mask=return_dropout_mask,
    )  # fmt: skip


class DropoutAddRMSNorm(DropoutAddNorm):
    """The RMS norm of a sum, with its weight."""

    rms = True


class RMSNorm(nn.Module):
    """The norm alone, with its weight."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """The norm of x's rows."""
        return rms_norm(x, self.weight, self.eps)
