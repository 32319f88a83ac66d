"""Zeros that autograd makes as gradients for a custom `autograd.Function`, on the device of the output they are for.

Where a backward pass reaches only some of a function's outputs, C++ fills in zeros for the others, on the CPU as it
believes. A function's outputs are remembered on its node, so that `backward` gets the zeros where it would on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import getattr_static

import torch
from torch.autograd.function import BackwardCFunction, Function

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of


def patches(state: State) -> list[Patch]:
    """`autograd.Function.apply` and the method through which the engine calls a custom backward."""
    stock = getattr_static(Function, "apply")  # a class method, from torch 2.14 on one of C
    stock_backward: Callable[..., object] = BackwardCFunction.apply

    def apply(cls: type, /, *args: object, **kwargs: object) -> object:
        out = stock.__get__(None, cls)(*args, **kwargs)
        if state.machine.concurrent:
            for tensor in tensors_in(args):
                device = device_of(tensor)
                if device >= 0:
                    state.order.leaf_used(tensor, device)
        outputs = out if isinstance(out, tuple) else (out,)
        tensors = {index: output for index, output in enumerate(outputs) if isinstance(output, torch.Tensor)}
        node: object = next((tensor.grad_fn for tensor in tensors.values() if tensor.grad_fn is not None), None)
        if isinstance(node, BackwardCFunction):  # whose backward gets zeros also for what is not differentiable
            node.__dict__["_wt_devices"] = {
                i: device_of(tensor) for i, tensor in tensors.items() if device_of(tensor) >= 0
            }
        return out

    def backward(self: object, *gradients: object) -> object:
        for index, device in self.__dict__.get("_wt_devices", {}).items():
            gradient = gradients[index] if index < len(gradients) else None
            if isinstance(gradient, torch.Tensor):
                state.settle(gradient, device)
        return stock_backward(self, *gradients)

    apply.__doc__, backward.__doc__ = stock.__doc__, stock_backward.__doc__
    return [Patch(Function, "apply", classmethod(apply)), Patch(BackwardCFunction, "apply", backward)]
