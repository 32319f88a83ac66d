"""Memory that is still to be written, and operators that read it: they read garbage.

It is that of parameters and buffers after `Module.to_empty`, and what a CUDA kernel of the program's own has left of
its result. Kernels that only move memory are no readers: wrappers such as FSDP pack parameters before somebody loads
them, and who pads a result selects a part of it.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np
import torch

from windtunnel.seam.torch.plans.plan import Plan
from windtunnel.seam.torch.state.blank import piece_of
from windtunnel.seam.torch.state.notes import Notes
from windtunnel.seam.torch.tags import BLANK, Tag, tag_of

MOST = 1 << 14
"""Operators that are watched for the sake of what is never written nor read."""


class Left(NamedTuple):
    """What left memory to be written: the parameter's or kernel's name, and the number of the line."""

    name: str
    site: int
    kernel: bool = False

    def still(self, tag: Tag) -> bool:
        """Whether anything is left."""
        return isinstance(tag.blank, np.ndarray) if self.kernel else tag.blank is BLANK


class Unfilled:
    """What is left to be written, by its memory's tag."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.names: weakref.WeakKeyDictionary[Tag, Left] = weakref.WeakKeyDictionary()
        self.any = False  # whether there may be some
        self._watched = 0

    def left(self, module: torch.nn.Module, site: int) -> None:
        """A module was made empty at a line."""
        self._watched = 0
        self.any = True
        for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
            for name, tensor in tensors:
                tag = tag_of(getattr(tensor, "_local_tensor", tensor))
                if tag.device >= 0 and tag.blank is BLANK:
                    self.names[tag] = Left(f"{kind} {name!r}", site)

    def left_by_kernel(self, tag: Tag, kernel: str, site: int) -> None:
        """A kernel of the program's own has written a part of its result."""
        self.any = self.notes.core.machine.watching = True
        self.names[tag] = Left(kernel, site, kernel=True)

    def read(self, tensor: torch.Tensor, plan: Plan, site: int) -> None:
        """A kernel reads a tensor."""
        tag, operator = tag_of(tensor), plan.name
        left = self.names.get(tag)
        if left is None or not left.still(tag) or _only_moves(plan):
            return
        line = str(self.notes.core.machine.trace.sites[left.site])
        if not left.kernel:
            del self.names[tag]
            self.notes.note("uninitialized-read", site, name=left.name, operator=operator, made=line)
            return
        assert isinstance(tag.blank, np.ndarray)
        selects = plan.card.hands == "part" or tensor.layout is not torch.strided
        size = 0 if selects else int(piece_of(tensor).of(tag.blank).sum())
        if size:
            del self.names[tag]
            found = f"{operator} reads {size} bytes of its result that neither it nor anything since has written"
            self.notes.note("cuda-uninitialized", site, kernel=left.name, found=found, launched=line, operator=operator)

    def copied(self, tag: Tag, start: int, end: int, site: int) -> None:
        """A copy of host code's takes bytes to the host."""
        left = self.names.get(tag)
        if left is not None and left.kernel and isinstance(tag.blank, np.ndarray) and tag.blank[start:end].any():
            del self.names[tag]
            size, line = int(tag.blank[start:end].sum()), str(self.notes.core.machine.trace.sites[left.site])
            found = f"the host copies {size} bytes of its result that neither it nor anything since has written"
            self.notes.note("cuda-uninitialized", site, kernel=left.name, found=found, launched=line, operator="copy")

    def watched(self) -> bool:
        """One more operator was seen: whether those to come have to be."""
        if not self.any:
            return False
        self._watched += 1
        if self._watched % 128 == 0:
            for tag in [tag for tag, left in self.names.items() if not left.still(tag)]:
                del self.names[tag]
            if self._watched > MOST:
                self.names.clear()
            self.any = bool(self.names)
        return self.any


def _only_moves(plan: Plan) -> bool:
    return plan.card.hands == "on" or plan.name.endswith("_like") or plan.name.startswith("aten::new_")
