"""`xformers.ops.rmsnorm`: a norm in one kernel, without gradients."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

Tensor = torch.Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float = 1e-6) -> Tensor:
    """RMS norm along the last dimension.

    Raises:
        ValueError: gradients are asked for.
    """
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (x, weight)):
        raise ValueError("Gradients not supported.")
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def rms_norm_add(x: Tensor, y: Tensor, weight: Tensor | None, eps: float = 1e-6) -> Tensor:
    """The same of the sum, which `x` becomes.

    Raises:
        ValueError: gradients are asked for.
    """
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (x, y, weight)):
        raise ValueError("Gradients not supported.")
    return rms_norm(x.add_(y), weight, eps)


class RMSNorm(nn.Module):
    """The norm as a layer."""

    def __init__(self, dim: int, include_weight: bool = True, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim)) if include_weight else None

    def forward(self, x: Tensor) -> Tensor:
        """RMS norm along the last dimension."""
        return rms_norm(x, self.weight, self.eps)

    def increment_and_forward_(self, x: Tensor, y: Tensor) -> Tensor:
        """The same of the sum, which `x` becomes."""
        return rms_norm_add(x, y, self.weight, self.eps)
