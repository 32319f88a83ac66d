"""The function that runs the autograd engine: it looks at its nodes' streams, and the caller's wait at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.dispatch.broadcast_losses import differentiated
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of


def patches(state: State) -> list[Patch]:
    """`torch.autograd.backward` and `grad`, as the graph module calls the engine for them."""
    stock: Callable[..., tuple[object, ...]] = torch.autograd.graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: object) -> object:
        local = state.local
        differentiated(state, args[0])
        before = local.callers
        local.callers = callers = list(local.streams)
        try:
            mismatch = state.machine.concurrent and state.order.backward_begins(args[0], args[4])
            found = stock(*args, **kwargs)
            if mismatch:
                state.order.warn(stock.__code__.co_firstlineno)
            if not kwargs.get("accumulate_grad", True):
                _settle(state, found, args[4])
            return found
        finally:
            local.streams[:] = callers
            local.callers = before
            state.order.backward_ends()

    owners = (torch.autograd, torch.autograd.graph)
    return [Patch(owner, "_engine_run_backward", run_backward) for owner in owners]


def _settle(state: State, gradients: Iterable[object], inputs: Iterable[object]) -> None:
    """Zeros that the engine fills in for an input without gradient lie where the input does."""
    for gradient, given in zip(gradients, inputs, strict=True):
        if isinstance(gradient, torch.Tensor) and isinstance(given, torch.Tensor):
            state.settle(gradient, device_of(given))
