"""Operators that take operators (`torch.cond`, `scan`): the emulation's mode is no mode of the program's to them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode_temporarily

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State

PYTHON = torch._C.DispatchKey.Python


def patches(_: State) -> list[Patch]:
    """`HigherOrderOperator.dispatch` before torch 2.7; later ones ask a mode for `supports_higher_order_operators`."""
    if hasattr(TorchDispatchMode, "supports_higher_order_operators"):
        return []
    stock: Callable[..., object] = HigherOrderOperator.dispatch

    def dispatch(self: object, dispatch_key: object, /, *args: object, **kwargs: object) -> object:
        mode = _get_current_dispatch_mode() if dispatch_key == PYTHON else None
        if not getattr(mode, "supports_higher_order_operators", False):
            return stock(self, dispatch_key, *args, **kwargs)
        with _pop_mode_temporarily() as popped:
            return popped.__torch_dispatch__(self, (), args, kwargs)

    return [Patch(HigherOrderOperator, "dispatch", dispatch)]


def _unnoticed(module: object) -> list[Patch]:
    """The kernels of these operators refuse to run in a mode, as they do not where there are GPUs."""
    stock = getattr(module, "_get_current_dispatch_mode", None)
    if stock is None:
        return []

    def _get_current_dispatch_mode() -> object:
        mode = stock()
        return None if type(mode).__module__.startswith("windtunnel.") else mode

    return [Patch(module, "_get_current_dispatch_mode", _get_current_dispatch_mode)]


MODULES: dict[str, Callable[[ModuleType], list[Patch]]] = {
    f"torch.{name}": _unnoticed
    for name in (
        "_dynamo._trace_wrapped_higher_order_op",
        *(f"_higher_order_ops.{name}" for name in ("base_hop", "cond", "invoke_subgraph", "scan", "strict_mode")),
    )
}
"""What is replaced when the program imports it, or has."""
