"""Functions of ours in the place of PyTorch's, which are equal to them.

PyTorch's functions are built-in objects that tables are keyed by (TensorDict's, `torch.overrides`', Dynamo's) and that
modes compare with. A stand-in equals the function and has its hash, so such tables find one under the other. C++ looks
the function that it hands to `__torch_function__` up by name in its own modules (`handle_torch_function_no_python_arg_\
parser` of torch/csrc/utils/python_arg_parser.cpp), so a stand-in is put there as well: `func is torch.zeros` holds.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from windtunnel.seam.patching import Patch

CXX = {torch: torch._C._VariableFunctionsClass, torch.fft: torch._C._fft}  # type: ignore[attr-defined]
"""Where C++ looks the functions of a public module up."""
CXX_PREFIX = {torch: "", torch.fft: "fft_"}
LIBRARIES = sys.stdlib_module_names - {"__main__"} | {"torch", "windtunnel", "numpy", "sympy"}
"""Packages in which no name of a program's is looked for."""


class StandIn:
    """A function that calls ours, and in all else is PyTorch's."""

    def __init__(self, stock: Callable[..., object], function: Callable[..., object]) -> None:
        functools.update_wrapper(self, stock)
        self.function = function
        self._hash = hash(stock)

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.__wrapped__ or getattr(other, "__wrapped__", other) is self.__wrapped__

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # not made yet
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__wrapped__)

    def __reduce__(self) -> str | tuple[object, ...]:
        reduced: str | tuple[object, ...] = self.__wrapped__.__reduce__()
        return reduced

    def __copy__(self) -> StandIn:
        return self

    def __deepcopy__(self, memo: object) -> StandIn:
        return self


class Factory(StandIn):
    """A factory that takes what C++ alone would not: a number for a device, `device` beside an `out` on a device."""

    def __init__(self, stock: Callable[..., object], check_out: Callable[[dict[str, object]], None]) -> None:
        super().__init__(stock, stock)
        self.check_out = check_out

    def __call__(self, *args: object, **kwargs: object) -> object:
        if "device" in kwargs:
            device = kwargs["device"]
            beside_out = device is not None and kwargs.get("out") is not None
            if isinstance(device, (int, str)) and (beside_out or device != "cuda"):
                kwargs["device"] = torch.device(device)
            if beside_out:
                self.check_out(kwargs)
        return self.function(*args, **kwargs)


class Getter(StandIn):
    """What `torch.Tensor.device.__get__` is: PyTorch makes another equal object at each look."""

    def __eq__(self, other: object) -> bool:
        return other is self or bool(other == self.__wrapped__)

    __hash__ = StandIn.__hash__


class Attribute(property):
    """An attribute of tensors in the place of PyTorch's; its `__get__`, which modes are told of, equals PyTorch's."""

    def __init__(
        self,
        stock: property,
        getter: Callable[[torch.Tensor], object],
        setter: Callable[[torch.Tensor, object], None] | None = None,
    ) -> None:
        super().__init__(getter, setter, None if setter is None else stock.__delete__, doc=stock.__doc__)
        self.__dict__["__get__"] = Getter(stock.__get__, property(getter).__get__)


def public(owner: ModuleType, name: str, value: Callable[..., object]) -> list[Patch]:
    """The patches that put a stand-in where Python finds the function, and where C++ does."""
    place, inner = CXX[owner], CXX_PREFIX[owner] + name
    found = vars(place).get(inner)
    if isinstance(found, staticmethod):
        return [Patch(owner, name, value), Patch(place, inner, staticmethod(value))]
    return [Patch(owner, name, value)] if found is None else [Patch(owner, name, value), Patch(place, inner, value)]
