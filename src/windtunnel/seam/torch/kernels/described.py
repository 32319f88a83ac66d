"""Operators that a program describes (`windtunnel.kernel`) after their first call: their plans are made anew."""

from __future__ import annotations

from windtunnel.operators import described
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State


def patches(state: State) -> list[Patch]:
    """What is told of every new description."""
    return [Patch(described, "changed", state.plans.clear)]
