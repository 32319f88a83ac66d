"""What a training changes in modules besides their parameters and buffers, as data and back."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from types import NoneType

import torch
from torch import nn

from windtunnel.train.checkpoint import UNKEPT_TENSORS

PLAIN = (bool, int, float, str, NoneType)


class Attributes:
    """The changes of modules since this was made: numbers, strings and tensors that are plain attributes, whether a
    module is in training mode, and which parameters require a gradient.

    What has not changed is not part of a checkpoint, so that a resumed program may set it anew.
    """

    def __init__(self, roots: Mapping[str, nn.Module]) -> None:
        self._roots = roots
        self._begun = {name: _mark(value) for name, _, _, value in self._all()}
        self._loaded: set[str] = set()

    def _all(self) -> Iterator[tuple[str, nn.Module, str, object]]:
        """Each attribute's full name, its module, its own name and its value."""
        for root, top in self._roots.items():
            for path, module in top.named_modules(prefix=root):
                for name, parameter in module._parameters.items():
                    if parameter is not None:
                        yield f"{path}.{name}", module, name, parameter.requires_grad
                for name, value in vars(module).items():
                    if isinstance(value, PLAIN) or _is_kept(value):
                        yield f"{path}.{name}", module, name, value

    def state_dict(self) -> dict[str, object]:
        """The changed values by full name, a tensor with whether it is on a GPU."""
        return {
            name: (value, value.is_cuda) if isinstance(value, torch.Tensor) else value
            for name, _, _, value in self._all()
            if name in self._loaded or self._begun.get(name, ()) != _mark(value)
        }

    def load_state_dict(self, state: Mapping[str, object], device: torch.device) -> None:
        """Set what `state` holds; its tensors of GPUs go to `device`."""
        modules = {path: module for root, top in self._roots.items() for path, module in top.named_modules(prefix=root)}
        self._loaded |= state.keys()
        for full_name, value in state.items():
            path, _, name = full_name.rpartition(".")
            module = modules.get(path)
            if module is None:
                continue
            parameter = module._parameters.get(name)
            if parameter is not None:
                parameter.requires_grad_(bool(value))
            elif isinstance(value, tuple):
                tensor, on_gpu = value
                vars(module)[name] = tensor.to(device) if on_gpu else tensor
            else:
                vars(module)[name] = value


def _is_kept(value: object) -> bool:
    """Whether it is a tensor that a checkpoint can hold, and no result of a step that keeps its graph."""
    return (
        type(value) is torch.Tensor
        and not (value.requires_grad or value.is_inference())
        and not any(meets(value) for meets in UNKEPT_TENSORS.values())
    )


def _mark(value: object) -> tuple[object, ...]:
    """What differs once the value has changed; of a tensor, which is not copied, the object and its version."""
    if isinstance(value, torch.Tensor):
        return weakref.ref(value), value._version
    return type(value), value
