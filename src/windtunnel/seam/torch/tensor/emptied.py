"""`Module.to_empty`: its parameters and buffers are to be written before anything reads them."""

from __future__ import annotations

import functools

import torch

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State


def patches(state: State) -> list[Patch]:
    """The method, which remembers what it left without values."""
    stock = torch.nn.Module.to_empty

    @functools.wraps(stock)
    def to_empty(self: torch.nn.Module, **kwargs: object) -> torch.nn.Module:
        made = stock(self, **kwargs)  # type: ignore[arg-type]
        unfilled = state.order.unfilled
        unfilled.left(made, state.site())
        if unfilled.names:
            state.machine.watching = True
        return made

    return [Patch(torch.nn.Module, "to_empty", to_empty)]
