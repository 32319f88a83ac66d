"""A kernel of the program's own as an operator of a graph that is captured."""

from __future__ import annotations

from collections.abc import Callable

import torch

from windtunnel.operators.card import card
from windtunnel.seam.torch.plans.plan import Plan

Tensor = torch.Tensor


class Again:
    """A launch as an operator of a graph, which each replay calls."""

    def __init__(self, name: str, compute: Callable[..., object]) -> None:
        self._name = name
        self._compute = compute

    def name(self) -> str:
        """As an operator says it."""
        return self._name

    def __call__(self, *tensors: Tensor) -> None:
        self._compute(*tensors)


class LaunchPlan(Plan):
    """What a graph's capture is told of a launch: an operator that reads and writes its tensors."""

    __slots__ = ()

    def __init__(self, again: Again) -> None:
        self.name = again.name()
        self.card = card(self.name)  # of an operator that nobody has written down
        self.run = again
        self.func = again  # type: ignore[assignment]
        self.random = 0
        self.builtin = self.kernel = True
        self.fresh = self.view = False
        self.mutated = ()
        self.mutated_keywords = ()
