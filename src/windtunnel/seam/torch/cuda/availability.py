"""What a program asks about devices before it uses them, and the environment that it sets: noted for the checks."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State

VISIBLE = "CUDA_VISIBLE_DEVICES"


def patches(state: State) -> list[Patch]:
    """`torch.cuda.is_available` and `device_count`, and `os.environ`."""
    notes = state.notes
    environment = type(os.environ)
    stock_set = environment.__setitem__

    def set_item(self: os._Environ[str], key: str, value: str) -> None:
        if key == VISIBLE and state.visible is not None and self.get(key) != value:
            notes.note("late-visible-devices", state.site(), value=str(value))
        stock_set(self, key, value)

    return [
        Patch(environment, "__setitem__", set_item),
        Patch(torch.cuda, "is_available", _asking(state, torch.cuda.is_available, "asked_available")),
        Patch(torch.cuda, "device_count", _asking(state, torch.cuda.device_count, "asked_count")),
    ]


def _asking(state: State, stock: Callable[..., object], name: str) -> Callable[..., object]:
    def asked(*args: object, **kwargs: object) -> object:
        if state.sites.is_program(sys._getframe(1)):
            setattr(state.notes, name, True)
        return stock(*args, **kwargs)

    asked.__name__, asked.__doc__ = stock.__name__, inspect.getdoc(stock)
    return asked
