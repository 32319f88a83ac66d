"""`torch.compile` without Triton: programs run eagerly, and the report says so."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.signatures import TESTED
from windtunnel.seam.torch.compiled.compilers import OLDEST, available
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import VERSION


def patches(state: State) -> list[Patch]:
    """`torch.compile`, where its compilers cannot work."""
    return [] if available() else [Patch(torch, "compile", _compile(state))]


def _compile(state: State) -> Callable[..., object]:
    stock: Callable[..., object] = torch.compile
    said: list[bool] = []

    @functools.wraps(stock)
    def compile(model: Callable[..., object] | None = None, **options: object) -> object:
        if model is None:
            return lambda model: compile(model, **options)
        if options.get("mode") is not None and options.get("options") is not None:
            return stock(model, **options)  # refuses that
        if options.get("disable"):
            return model
        _check(options)
        if not said and options.get("backend", "inductor") not in EAGER and os.environ.get(DISABLED) != "1":
            said.append(True)
            name = getattr(model, "__qualname__", type(model).__name__)
            state.notes.note("not-modelled", state.site(), what="compile", name=name, cure=cure())
        # What runs a model without the compiler, under the names that a compiled one has (`_orig_mod`).
        return importlib.import_module("torch._dynamo.eval_frame").DisableContext()(model)

    return compile


def cure() -> str:
    """What lets `torch.compile` compile here."""
    missing = f'pip install "{TESTED["triton"]}"' if VERSION >= OLDEST else ""
    return missing or f"it needs PyTorch {OLDEST[0]}.{OLDEST[1]} or newer, and its Triton"


EAGER = ("eager", "aot_eager")
"""Backends that compile nothing on a GPU either."""
DISABLED = "TORCH_COMPILE_DISABLE"
"""PyTorch's variable by which a person asks for the uncompiled program."""
MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""Modes of Inductor, which is imported only where another one must be refused, or options looked at."""


def _check(options: dict[str, object]) -> None:
    """Raise what PyTorch raises for a backend, a mode or an option that there is not."""
    backend = options.get("backend", "inductor")
    if backend == "inductor":
        if options.get("mode") not in MODES or options.get("options"):
            torch._TorchCompileInductorWrapper(options.get("mode"), options.get("options"), options.get("dynamic"))
    elif isinstance(backend, str):
        importlib.import_module("torch._dynamo.backends.registry").lookup_backend(backend)
