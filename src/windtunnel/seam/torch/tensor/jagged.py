"""Jagged nested tensors (`torch.jagged`): their values lie where their offsets do.

PyTorch compares the two devices when it makes one. Values that C++ made on the way to a gradient lie nowhere yet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import FLOATING, device_of, storage_of, tag_of


def modules(state: State) -> dict[str, Callable[[ModuleType], list[Patch]]]:
    """What is replaced in the module that the program may import later."""

    def making(module: ModuleType) -> list[Patch]:
        kind: type[torch.Tensor] = module.NestedTensor
        stock: Callable[..., torch.Tensor] = kind.__new__

        @functools.wraps(stock)
        def make(
            cls: type, values: torch.Tensor, offsets: torch.Tensor, *args: object, **kwargs: object
        ) -> torch.Tensor:
            device = device_of(offsets)
            if device >= 0 and tag_of(values).device == FLOATING:
                state.place(storage_of(values), device)
            return stock(cls, values, offsets, *args, **kwargs)

        return [Patch(kind, "__new__", staticmethod(make))]

    return {"torch.nested._internal.nested_tensor": making}
