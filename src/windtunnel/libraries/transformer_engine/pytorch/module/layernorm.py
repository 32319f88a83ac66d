"""`transformer_engine.pytorch.module.layernorm` and `.rmsnorm`: norms by themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NoReturn

import torch
from torch import nn
from torch.nn import functional as F

from windtunnel.libraries import refuse, unanswered

from ...common.recipe import LIBRARY
from .base import Device, Where, activation_dtype

Tensor = torch.Tensor


def __getattr__(name: str) -> NoReturn:
    refuse(LIBRARY, "transformer_engine.pytorch.module.layernorm", name)


def normalized(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, rms: bool, zero_centred: bool) -> Tensor:
    """A norm of the last dimensions, in the type of the layer's results."""
    dtype = activation_dtype(x)
    with torch.autocast("cuda", enabled=False):
        x, weight = x.to(dtype), weight.to(dtype)
        if zero_centred:
            weight = weight + 1
        if rms:
            return F.rms_norm(x, weight.shape, weight, eps)
        return F.layer_norm(x, weight.shape, weight, None if bias is None else bias.to(dtype), eps)


class _Norm(nn.Module):
    """What both norms have."""

    rms: bool

    def __init__(
        self,
        normalized_shape: Iterable[int] | int | None = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        hidden_size: int | None = None,
        *,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
        sm_margin: int | dict[str, int] = 0,
    ) -> None:
        super().__init__()
        if (normalized_shape is None) == (hidden_size is None):
            which = "Neither" if hidden_size is None else "Both"
            joint, end = ("nor", "args are provided") if hidden_size is None else ("and", "args are provided")
            raise RuntimeError(f"{which} `normalized_shape` {joint} `hidden_size` (deprecated) {end}")
        if sequence_parallel:
            unanswered(LIBRARY, "a norm with sequence_parallel")
        shape = hidden_size if normalized_shape is None else normalized_shape
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        where = Where("cuda" if device is None else device, params_dtype or dtype or torch.get_default_dtype())
        self.weight = nn.Parameter(where.empty(*sizes))
        self.bias = None if self.rms else nn.Parameter(where.empty(*sizes))
        if self.weight.device.type != "meta":
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Let the norm begin as the plain one."""
        nn.init.constant_(self.weight, 0.0 if self.zero_centered_gamma else 1.0)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The norm of the last dimensions."""
        if x.shape[-1] != self.weight.shape[-1] and math.prod(x.shape[-1:]) != self.weight.numel():
            raise ValueError(
                f"Input tensor (shape={tuple(x.shape)}) and weight tensor (shape={tuple(self.weight.shape)}) are not "
                "compatible"
            )
        return normalized(x, self.weight, self.bias, self.eps, self.rms, self.zero_centered_gamma)


class LayerNorm(_Norm):
    """A layer norm."""

    rms = False


class RMSNorm(_Norm):
    """An RMS norm."""

    rms = True
