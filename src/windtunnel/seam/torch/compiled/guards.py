"""What Dynamo checks before it takes a compiled program: the device of a tensor too, which C++ does not know here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Protocol

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.tags import device_of


class Manager(Protocol):
    """A node of Dynamo's tree of guards."""

    def add_lambda_guard(self, check: Callable[[object], bool], verbose: list[str], stack: object) -> None:
        """Let `check` of the value decide, too."""


class Guard(Protocol):
    """What a guard is about."""

    name: str
    user_stack: object


class Builder(Protocol):
    """`GuardBuilder` of torch/_dynamo/guards.py."""

    def get_guard_manager(self, guard: Guard) -> Manager:
        """The node of a guard's value."""

    def get(self, guard: Guard) -> object:
        """A guard's value at compile time."""


def generators_patches(module: ModuleType) -> list[Patch]:
    """`torch._dynamo.variables.script_object`: a device's generator is a generator, which breaks graphs.

    Dynamo asks for `torch._C.Generator` itself and takes a class derived from it for an opaque object.
    """
    named = vars(module)  # PyTorch 2.14 renamed it
    owner = named.get("CustomClassObjectVariable") or named["TorchScriptObjectVariable"]
    stock: Callable[[type], bool] = owner.is_matching_cls

    @functools.wraps(stock)
    def is_matching_cls(user_cls: type) -> bool:
        derived = user_cls is not torch._C.Generator and issubclass(user_cls, torch._C.Generator)
        return not derived and stock(user_cls)

    return [Patch(owner, "is_matching_cls", staticmethod(is_matching_cls))]


def guards_patches(module: ModuleType) -> list[Patch]:
    """`torch._dynamo.guards`: a tensor's match is that of its device, too."""
    owner = module.GuardBuilder
    stock: Callable[..., None] = owner.TENSOR_MATCH
    by_identity: Callable[[Guard], bool] = module.match_on_id_for_tensor

    @functools.wraps(stock)
    def TENSOR_MATCH(self: Builder, guard: Guard, value: object = None) -> None:  # noqa: N802 - PyTorch's own name
        stock(self, guard, value)
        if by_identity(guard):
            return
        value = value if isinstance(value, torch.Tensor) else self.get(guard)
        if not isinstance(value, torch.Tensor):
            return
        device = device_of(value)

        def lies_there(tensor: object) -> bool:
            return isinstance(tensor, torch.Tensor) and device_of(tensor) == device

        where = "cpu" if device < 0 else f"cuda:{device}"
        said = [f"tensor {guard.name!r} device mismatch. expected {where}"]
        self.get_guard_manager(guard).add_lambda_guard(lies_there, said, guard.user_stack)

    return [Patch(owner, "TENSOR_MATCH", TENSOR_MATCH)]
