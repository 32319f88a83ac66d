"""AOTInductor, which compiles a model into a library for a GPU: there is none to run it, so it is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import ModuleType

import torch

from understudy.errors import UnsupportedError
from understudy.seam.patching import Patch
from understudy.seam.torch.operators.plan import tensors_in
from understudy.seam.torch.tags import device_of

NAMES = ("aot_compile", "aoti_compile_and_package")
REFUSAL = (
    "torch._inductor.{name} compiles a library of GPU code, which an emulated GPU cannot run: "
    "rehearse the model with torch.compile instead"
)


def aot_patches(module: ModuleType) -> list[Patch]:
    """`torch._inductor`: what compiles ahead of time, for models that have a tensor on an emulated GPU."""
    return [Patch(module, name, _refusing(name, vars(module)[name])) for name in NAMES if name in vars(module)]


def _refusing(name: str, stock: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(stock)
    def compile(model: object, *args: object, **kwargs: object) -> object:
        if any(device_of(tensor) >= 0 for tensor in _tensors(model, (*args, *kwargs.values()))):
            raise UnsupportedError(REFUSAL.format(name=name))
        return stock(model, *args, **kwargs)

    return compile


def _tensors(model: object, given: Iterable[object]) -> Iterable[torch.Tensor]:
    state = getattr(model, "state_dict", {})
    held = state() if callable(state) else state
    return tensors_in((*held.values(), *getattr(model, "constants", {}).values(), *given))


MODULES = {"torch._inductor": aot_patches}
