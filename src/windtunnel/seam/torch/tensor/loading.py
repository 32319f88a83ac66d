"""DataLoader: what it does on the way to a device that the emulation must price or remark on.

Its workers are processes of their own, forked or spawned (`processes`); its pin thread is a thread like any other,
whose host clock is not waited for, as pinning overlaps with the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.utils.data

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.state.state import State
from windtunnel.trace.operation import Note

SHARES_ITSELF = ("windtunnel", "accelerate")
"""Packages that read a plain loader on every rank and give each its share of the batches."""


def patches(state: State) -> list[Patch]:
    """The names of `torch.utils.data` to replace."""
    return [Patch(torch.utils.data.DataLoader, "__iter__", _remarking(state))]


def _remarking(state: State) -> Callable[..., object]:
    stock = torch.utils.data.DataLoader.__iter__
    plain = (torch.utils.data.RandomSampler, torch.utils.data.SequentialSampler)

    def __iter__(self: torch.utils.data.DataLoader[object]) -> object:  # noqa: N807  it takes that name's place
        sampler = self.sampler if self.batch_sampler is None else getattr(self.batch_sampler, "sampler", None)
        # A loader that is read without gradients evaluates: there, every rank may well read everything.
        if (
            isinstance(sampler, plain)
            and torch.is_grad_enabled()
            and dist.is_available()
            and dist.is_initialized()
            and dist.get_world_size() > 1
            and dist.get_backend() == "nccl"
            and str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0] not in SHARES_ITSELF
        ):
            site = state.machine.trace.sites[state.site()]
            state.machine.note(state.local.host, Note("same-data-on-ranks", site, (("rank", dist.get_rank()),)))
        return stock(self)

    return __iter__
