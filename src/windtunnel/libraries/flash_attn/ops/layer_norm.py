"""`flash_attn.ops.layer_norm`: the norm alone, and of a sum with a residual."""

from __future__ import annotations

from typing import NoReturn

import torch

from windtunnel.libraries import refuse

from ._norms import DropoutAddNorm
from ._norms import norm as _norm

Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse("flash_attn 2.8.3", "flash_attn.ops.layer_norm", name)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor | tuple[Tensor, Tensor]:
    """The norm of x's rows."""
    return _norm(x, weight, bias, None, epsilon, rms=False)


def dropout_add_layer_norm(
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
        x0, weight, bias, residual, epsilon, rms=False, prenorm=prenorm, residual_in_fp32=residual_in_fp32,
        dropout_p=dropout_p, rowscale=rowscale, layerscale=layerscale, return_dropout_mask=return_dropout_mask,
    )  # fmt: skip


class DropoutAddLayerNorm(DropoutAddNorm):
    """The layer norm of a sum, with its weights."""
