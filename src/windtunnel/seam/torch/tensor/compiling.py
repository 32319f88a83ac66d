"""`torch.jit` compiles PyTorch's functions, not our wrappers."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import torch
import torch.jit._builtins as builtins_table
import torch.jit._serialization
from torch.jit._script import RecursiveScriptModule

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.dispatch.moves import move
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import device_of

DEVICES = "windtunnel_devices.json"
"""An extra file in a saved script module: which tensors lived on which device. C++ writes all as on the CPU."""


def patches(state: State) -> list[Patch]:
    """What `torch.jit.script` takes for an operator, and saved script modules."""
    load = _load(state)
    return [
        Patch(torch._C, "_cuda_CUDAAllocator_AllocatorState", type("AllocatorState", (), {})),  # Inductor imports it
        Patch(builtins_table, "_find_builtin", _find_builtin(builtins_table._find_builtin)),
        Patch(builtins_table, "_builtin_table", builtins_table._builtin_table),  # one made meanwhile holds our wrappers
        Patch(RecursiveScriptModule, "save", _saving(RecursiveScriptModule.save)),
        Patch(RecursiveScriptModule, "save_to_buffer", _saving(RecursiveScriptModule.save_to_buffer)),
        Patch(torch.jit, "load", load),
        Patch(torch.jit._serialization, "load", load),
    ]


# ---------------------------------------------------------------------------------------------- torch.jit


def _find_builtin(stock: Callable[[object], object]) -> Callable[[object], object]:
    modules: Iterable[ModuleType] = builtins_table._modules_containing_builtins

    def _find_builtin(fn: object) -> object:
        found = stock(fn)
        if found is None and hasattr(fn, "__wrapped__"):
            found = stock(fn.__wrapped__)
        if found is None and getattr(fn, "__module__", None) and fn.__module__.startswith("windtunnel."):
            # PyTorch's table, made before the emulation, has the operator under the same name.
            names = (name for module in modules for name, value in vars(module).items() if value is fn)
            found = next((f"aten::{name}" for name in names), None)
        return found

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
