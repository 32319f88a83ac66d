"""Operators that take operators, in versions of PyTorch whose dispatch modes must register with each of them."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode_temporarily

from understudy.seam.patching import Patch
from understudy.seam.torch.state.state import State

PYTHON = torch._C.DispatchKey.Python


def patches(_: State) -> list[Patch]:
    """`HigherOrderOperator.dispatch` before torch 2.7; later ones ask a mode for `supports_higher_order_operators`."""
    if hasattr(TorchDispatchMode, "supports_higher_order_operators"):
        return []
    stock: Any = HigherOrderOperator.dispatch

    def dispatch(self: Any, dispatch_key: Any, /, *args: Any, **kwargs: Any) -> Any:
        mode = _get_current_dispatch_mode() if dispatch_key == PYTHON else None
        if not getattr(mode, "supports_higher_order_operators", False):
            return stock(self, dispatch_key, *args, **kwargs)
        with _pop_mode_temporarily() as popped:
            return popped.__torch_dispatch__(self, (), args, kwargs)

    return [Patch(HigherOrderOperator, "dispatch", dispatch)]
