"""The function that runs the autograd engine: it looks at its nodes' streams, and the caller's wait at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
        before, crossings = local.callers, local.crossings
        local.callers = callers = list(local.streams)
        local.crossings = None
        floated, local.floated = local.floated, []
        host = local.host
        outside_ns, host.extra_ns = host.extra_ns, state.machine.backward_ns
        try:
            mismatch = state.machine.concurrent and state.order.backward_begins(args[0], args[4])
            found = stock(*args, **kwargs)
            if mismatch:
                state.order.warn(stock.__code__.co_firstlineno)
            if not kwargs.get("accumulate_grad", True):
                _settle(state, found, args[4])
            elif any(tag() is not None for tag in local.floated):
                _place(state, leaves_of(args[0]))
            return found
        finally:
            local.streams[:] = callers
            local.callers, local.crossings = before, crossings
            host.extra_ns = outside_ns
            local.floated = floated
            state.order.backward_ends()

    owners = (torch.autograd, torch.autograd.graph)
    return [Patch(owner, "_engine_run_backward", run_backward) for owner in owners]


def _place(state: State, leaves: Iterable[torch.Tensor]) -> None:
    """Zeros that autograd's formulas make of sizes and options alone lie where their tensor does.

    Zero tensors become ordinary ones: C++ looks at the device of what they meet, which is the host's for it.
    """
    for leaf in leaves:
        if leaf.grad is not None and leaf.grad._is_zerotensor() and device_of(leaf) >= 0:
            leaf.grad = torch.zeros_like(leaf)
        _settle(state, (leaf.grad,), (leaf,))


def leaves_of(roots: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The tensors whose gradients a backward pass from `roots` accumulates."""
    nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        more = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= more
        nodes += more


def _settle(state: State, gradients: Iterable[object], inputs: Iterable[object]) -> None:
    """Zeros that the engine fills in for an input without gradient lie where the input does."""
    for gradient, given in zip(gradients, inputs, strict=True):
        if isinstance(gradient, torch.Tensor) and isinstance(given, torch.Tensor):
            state.settle(gradient, device_of(given))
