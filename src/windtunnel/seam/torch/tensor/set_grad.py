"""`tensor.grad = other`: C++ takes both for the CPU's, and would accept a gradient on another device.

Source: `THPVariable_set_grad` of torch/csrc/autograd/python_variable.cpp, whose sentences these are.
"""

from __future__ import annotations

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.standins import Attribute
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import FLOATING, device_of, disable_torch_function

Tensor = torch.Tensor
stock: property = torch._C.TensorBase.grad  # type: ignore[assignment]
get_stock, set_stock = stock.__get__, stock.__set__


def patches(state: State) -> list[Patch]:
    """The property."""
    return [Patch(Tensor, "grad", Attribute(stock, get_stock, set_grad))]


def set_grad(self: Tensor, value: object) -> None:
    """Set the gradient, if it is of the tensor's type and lies on its device."""
    if isinstance(value, Tensor):
        with disable_torch_function():
            wanted, found = device_of(self), device_of(value)
            if wanted != found and FLOATING not in (wanted, found) and self.dtype == value.dtype:
                raise RuntimeError(_refusal(wanted, found))
    set_stock(self, value)


def _refusal(wanted: int, found: int) -> str:
    if wanted < 0 or found < 0:
        where, names = "with device type", ("cuda", "cpu") if found >= 0 else ("cpu", "cuda")
    else:
        where, names = "located on device with index", (str(found), str(wanted))
    return (
        f"attempting to assign a gradient {where} '{names[0]}' to a tensor {where} '{names[1]}'. "
        "Please ensure that the gradient and the tensor are on the same device"
    )
