"""What `torch.load` put on GPUs: a checkpoint that stays there beside the states that were copied from it.

Without `map_location` its tensors go back to the GPU that they were saved from.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tensor import placeholders


def patches(state: State) -> list[Patch]:
    """`torch.load`, whose tensors are remembered by its line."""
    stock: Callable[..., object] = torch.load

    @functools.wraps(stock)
    def load(f: object, map_location: object = None, *args: object, **kwargs: object) -> object:
        with state.memory.loaded.loading(state.site()), placeholders.loading(state, f, map_location):
            return stock(f, map_location, *args, **kwargs)

    return [Patch(torch, "load", load)]
