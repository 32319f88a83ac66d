"""Functions whose composite on CUDA is another one than on the CPU: rerouted to the operators that CUDA runs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from understudy.seam.patching import Patch
from understudy.seam.torch.state.state import State
from understudy.seam.torch.tags import device_of


def patches(state: State) -> list[Patch]:
    """Dropout: CUDA runs one fused operator that keeps its mask, the CPU multiplies by noise."""
    stock = F.dropout
    stock_torch = torch.dropout

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if _fused(input, p, training) and not inplace:
            return torch.native_dropout(input, p, True)[0]
        return stock(input, p, training, inplace)

    def torch_dropout(input: Any, p: float, train: bool) -> torch.Tensor:
        return torch.native_dropout(input, p, True)[0] if _fused(input, p, train) else stock_torch(input, p, train)

    dropout.__doc__ = stock.__doc__
    dropout.__prepare_scriptable__ = lambda: stock  # type: ignore[attr-defined]  # what torch.jit compiles
    return [Patch(F, "dropout", dropout), Patch(torch, "dropout", torch_dropout)]


def _fused(input: Any, p: float, training: bool) -> bool:
    return training and isinstance(input, torch.Tensor) and 0 < p < 1 and device_of(input) >= 0 and input.numel() > 0
