"""Compilers: `torch.compile` runs eagerly and says so; `torch.jit` compiles PyTorch's functions, not our wrappers."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.jit._builtins as builtins_table
import torch.jit._serialization
from torch.jit._script import RecursiveScriptModule

from understudy.seam.patching import Patch
from understudy.seam.torch.dispatch.moves import move
from understudy.seam.torch.state.state import State
from understudy.seam.torch.tags import device_of

DEVICES = "understudy_devices.json"
"""An extra file in a saved script module: which tensors lived on which device. C++ writes all as on the CPU."""


def patches(state: State) -> list[Patch]:
    """`torch.compile`, what `torch.jit.script` takes for an operator, and saved script modules."""
    load = _load(state)
    return [
        Patch(torch._C, "_cuda_CUDAAllocator_AllocatorState", type("AllocatorState", (), {})),  # Inductor imports it
        Patch(torch, "compile", _compile(state)),
        Patch(builtins_table, "_find_builtin", _find_builtin(builtins_table._find_builtin)),
        Patch(builtins_table, "_builtin_table", builtins_table._builtin_table),  # one made meanwhile holds our wrappers
        Patch(RecursiveScriptModule, "save", _saving(RecursiveScriptModule.save)),
        Patch(RecursiveScriptModule, "save_to_buffer", _saving(RecursiveScriptModule.save_to_buffer)),
        Patch(torch.jit, "load", load),
        Patch(torch.jit._serialization, "load", load),
    ]


# ---------------------------------------------------------------------------------------------- torch.compile


def _compile(state: State) -> Callable[..., object]:
    stock = torch.compile
    said: list[bool] = []

    @functools.wraps(stock)
    def compile(model: Callable[..., object] | None = None, **options: Any) -> object:
        if model is None:
            return lambda model: compile(model, **options)
        if options.get("mode") is not None and options.get("options") is not None:
            return stock(model, **options)  # refuses that
        if options.get("disable"):
            return model
        _check(options)
        if not said:
            said.append(True)
            name = getattr(model, "__qualname__", type(model).__name__)
            state.notes.note("not-modelled", state.site(), what="compile", name=name)
        # What runs a model without the compiler, under the names that a compiled one has (`_orig_mod`).
        return importlib.import_module("torch._dynamo.eval_frame").DisableContext()(model)

    return compile


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


# ---------------------------------------------------------------------------------------------- torch.jit


def _find_builtin(stock: Callable[[object], object]) -> Callable[[object], object]:
    def _find_builtin(fn: object) -> object:
        found = stock(fn)
        return stock(fn.__wrapped__) if found is None and hasattr(fn, "__wrapped__") else found

    return _find_builtin


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict([*module.named_parameters(), *module.named_buffers()])


def _saving(stock: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(stock)
    def save(
        self: torch.nn.Module, *args: object, _extra_files: Mapping[str, object] | None = None, **kwargs: object
    ) -> object:
        devices = {name: device_of(tensor) for name, tensor in _tensors(self).items() if device_of(tensor) >= 0}
        if devices:
            _extra_files = {**(_extra_files or {}), DEVICES: json.dumps(devices, sort_keys=True)}
        if _extra_files is not None:
            kwargs["_extra_files"] = _extra_files
        return stock(self, *args, **kwargs)

    return save


def _load(state: State) -> Callable[..., object]:
    stock: Callable[..., torch.jit.ScriptModule] = torch.jit.load

    @functools.wraps(stock)
    def load(
        f: object,
        map_location: torch.device | str | None = None,
        _extra_files: dict[str, object] | None = None,
        **kwargs: object,
    ) -> object:
        files: dict[str, Any] = {**(_extra_files or {}), DEVICES: ""}
        device = None if map_location is None else torch.device(map_location)
        ours = device is None or device.type == "cuda"
        module = stock(f, "cpu" if ours else device, files, **kwargs)
        devices = json.loads(files.pop(DEVICES) or "{}")
        if _extra_files is not None:
            _extra_files.update(files)
        if ours:
            for name, tensor in _tensors(module).items():
                index = devices.get(name, -1) if device is None else state.index(device)
                if index >= 0:
                    tensor.data = move(state, tensor.detach(), index)
        return module

    return load
