"""Dropout: on CUDA one kernel that keeps a mask of one byte an element."""

from __future__ import annotations

from typing import Any

import torch

from understudy.seam.torch.state.state import State
from understudy.seam.torch.tags import device_of

aten = torch.ops.aten


def dropout(state: State, func: Any, input: torch.Tensor, p: float, train: bool) -> Any:
    """C++'s dropout: on CUDA one kernel that keeps a mask of one byte an element; its input where it drops nothing.

    Source: `_dropout_impl` of aten/src/ATen/native/Dropout.cpp.
    """
    if 0 <= p <= 1 and (p == 0 or not train or input.numel() == 0):
        return input
    if train and 0 < p < 1 and device_of(input) >= 0 and input.numel() > 0:
        return aten.native_dropout.default(input, p, True)[0]
    return func.decompose(input, p, train)


COMPOSITES = {aten.dropout.default: dropout}
