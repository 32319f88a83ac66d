"""Gradients go back to the device of the tensor that they belong to.

C++ takes every tensor for the host's, so it leaves a gradient where it is. On CUDA the copy's own node moves it
(`CopyBackwards`), and the engine moves one of a tensor without dimensions (`validate_outputs` of
torch/csrc/autograd/engine.cpp).
"""

from __future__ import annotations

import torch

from windtunnel.seam.torch.tags import device_of

Tensor = torch.Tensor


def return_copied(written: Tensor, source: Tensor) -> None:
    """After `source` was written into `written`: its gradient goes back to where it lives.

    `CopyBackwards`, `IndexPutBackward` and a view's `CopySlices` all give it second.
    """
    if device_of(source) == device_of(written) or not torch.is_grad_enabled():
        return
    node = (written if written._base is None else written._base).grad_fn
    if node is None:
        return
    device = source.device

    def back(inputs: tuple[Tensor | None, ...], _: object) -> tuple[Tensor | None, ...]:
        first, second, *others = inputs
        return (first, None if second is None else second.to(device), *others)

    node.register_hook(back)


def return_to_host(tensor: Tensor) -> None:
    """The gradient of a host tensor without dimensions, which an operator of a device takes, comes to the host."""
    if not torch.is_grad_enabled():
        return
    hooks = tensor._backward_hooks
    if not hooks or _to_host not in hooks.values():
        tensor.register_hook(_to_host)


def meet(args: tuple[object, ...]) -> bool:
    """Whether two gradients of one number on the host, which two devices took, are added in a backward pass.

    On CUDA they have come to the host by then, one by one. Here their sum does (`return_to_host`).
    """
    in_backward = torch._C._current_graph_task_id() >= 0
    return in_backward and all(isinstance(value, Tensor) and value.dim() == 0 for value in args[:2])


def _to_host(gradient: Tensor) -> Tensor:
    return gradient.cpu()
