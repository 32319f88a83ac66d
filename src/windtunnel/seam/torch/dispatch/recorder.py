"""What the dispatch mode knows of a mode above it that writes operators down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.plans.plan import Plan

Again = Callable[[Call], object]
"""Computes a captured operator in a replay."""
Wait = Callable[[], object]
"""Waits in a replay for what a captured operator has begun."""


def nothing(call: Call) -> object:
    """Stands for an operator that a replay leaves out: its result is its argument."""
    return call.args[0]


class Recorder(Protocol):
    """A mode above the emulation's own, which writes operators down (a graph's capture)."""

    again: Again | None
    """What computes the operator that is handled now in a replay, where that is not its kernel on the CPU."""

    def then(self, wait: Wait) -> None:
        """A replay waits here, as the capture did, for an operator that it has begun."""

    def parts(self) -> AbstractContextManager[object]:
        """Enters both modes, for the parts of the operator that the recorder handles now."""

    def launched(self, plan: Plan, compute: Callable[..., Sequence[int]], tensors: tuple[torch.Tensor, ...]) -> None:
        """Write a kernel of the program's own down, which `compute` runs now and the plan's function in each replay.

        `compute` returns the positions of the tensors that the kernel wrote.
        """

    def happened(self, written: Iterable[torch.Tensor]) -> None:
        """A stream that is not captured has written these."""
