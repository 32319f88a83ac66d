"""`tensor.data = other`: a leaf that gets another type's data gets another node for its gradient too.

In a rehearsal without data a device's tensors are meta tensors and the host's are not. PyTorch sets the data of a
tensor of one kind alone, and a module that is moved between kinds gets new parameters, of which its optimizer knows
nothing. On CUDA the host's and the device's tensors are of one kind. A scripted module holds its parameters itself,
once by name and an LSTM's in a list too: both get what has been moved.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import disable_torch_function, is_physically_meta

Tensor = torch.Tensor
PLAIN = torch._C._disabled_torch_dispatch_impl
stock: property = torch._C.TensorBase.data  # type: ignore[assignment]
get_stock, set_stock = stock.__get__, stock.__set__
swap_contents = torch._C._swap_tensor_impl


def patches(state: State) -> list[Patch]:
    """The property, and what a rehearsal without data replaces beside it."""
    leaves = state.order.leaves

    def set_data(self: Tensor, value: Tensor) -> None:
        leaves.replaced(self, value)
        set_stock(self, value)

    def set_any(self: Tensor, value: Tensor) -> None:
        leaves.replaced(self, value)
        if _two_kinds(self, value):
            with torch._C._DisableTorchDispatch():  # no work of the program's
                swap_contents(self, value.detach().requires_grad_(self.requires_grad))
        else:
            set_stock(self, value)

    def compatible(*args: Tensor, **kwargs: Tensor) -> bool:  # Dynamo compares its signature with its own
        tensor, other = (*args, *kwargs.values())
        # A gradient lies where its parameter does: `Module._apply` moves the parameter first, and then sets it anew.
        return bool(compatible_stock(tensor, other)) or (
            _two_kinds(tensor, other) and isinstance(tensor, torch.nn.Parameter)
        )

    if not state.no_data:
        return [Patch(Tensor, "data", property(get_stock, set_data, doc=stock.__doc__))]
    compatible_stock = torch._has_compatible_shallow_copy_type
    return [
        Patch(Tensor, "data", property(get_stock, set_any, doc=stock.__doc__)),
        Patch(torch, "_has_compatible_shallow_copy_type", compatible),
        Patch(torch.jit.ScriptModule, "_apply", _apply_to_scripted),
    ]


def _apply_to_scripted(
    self: torch.jit.ScriptModule, fn: Callable[[Tensor], Tensor], recurse: bool = True
) -> torch.jit.ScriptModule:
    held: dict[str, object] = dict(self._parameters.items())
    for name in self._concrete_type.get_attributes():
        value = getattr(self._c, name)
        if isinstance(value, list) and any(isinstance(one, Tensor) for one in value):
            held[name] = value
    torch.nn.Module._apply(self, fn, recurse)
    for name, value in held.items():
        self._c.setattr(name, value)
    return self


def _two_kinds(tensor: Tensor, other: object) -> bool:
    """Whether one of two dense tensors has values and the other, of a device, has none; a library's own classes count
    (bitsandbytes' parameters), but for those that take themselves apart."""
    with disable_torch_function():  # a parameter of a lazy module refuses to be looked at
        return (
            isinstance(other, Tensor)
            and tensor.__class__.__torch_dispatch__ is PLAIN is other.__class__.__torch_dispatch__
            and tensor.layout is torch.strided
            and is_physically_meta(tensor) != is_physically_meta(other)
        )
