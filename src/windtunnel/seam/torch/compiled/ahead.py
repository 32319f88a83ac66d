"""What compiles a model ahead of time, or exports it with its values: refused for models on an emulated GPU.

A library for a GPU (AOTInductor) or saved code of Dynamo's has none to run on. `draft_export` keeps real tensors beside
fake ones, below every dispatch mode, where PyTorch has no kernels for a device that is not there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import ModuleType

import torch

from windtunnel.errors import UnsupportedError
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.tags import device_of

COMPILES = (
    "compiles a library of GPU code, which an emulated GPU cannot run: rehearse the model with torch.compile instead"
)
SAVES = "saves code for a GPU, which an emulated one cannot run: rehearse the model with torch.compile instead"
DRAFTS = (
    "computes beside its fake tensors with real ones that no emulation sees: "
    "export the model with torch.export.export, or draft it on the CPU"
)
REFUSED = {
    "torch._inductor": {"aot_compile": COMPILES, "aoti_compile_and_package": COMPILES},
    "torch._dynamo.aot_compile": {"aot_compile_fullgraph": SAVES, "aot_compile_module": SAVES},
    "torch.export._draft_export": {"draft_export": DRAFTS},
}
"""Functions by module, and why they are refused."""


def _patches(module: ModuleType) -> list[Patch]:
    """Refusals for models that have a tensor on an emulated GPU."""
    refused = REFUSED[module.__name__]
    return [
        Patch(module, name, _refusing(f"{module.__name__}.{name}", why, vars(module)[name]))
        for name, why in refused.items()
        if name in vars(module)
    ]


def _refusing(name: str, why: str, stock: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(stock)
    def refuse(*args: object, **kwargs: object) -> object:
        given = (*args, *kwargs.values())
        if any(device_of(tensor) >= 0 for tensor in _tensors(given)):
            raise UnsupportedError(f"{name} {why}")
        return stock(*args, **kwargs)

    return refuse


def _tensors(given: Iterable[object]) -> Iterable[torch.Tensor]:
    """Those that a function is given, on their own or in a model."""
    for value in given:
        state = getattr(value, "state_dict", {})
        held = state() if callable(state) else state
        yield from tensors_in((value, *held.values(), *getattr(value, "constants", {}).values()))


MODULES = dict.fromkeys(REFUSED, _patches)
