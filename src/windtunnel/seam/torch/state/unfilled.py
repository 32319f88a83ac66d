"""Parameters and buffers that `Module.to_empty` gave memory to and nobody wrote since: who reads them reads garbage.

Kernels that only move memory are no readers: wrappers such as FSDP pack parameters before somebody loads them.
"""

from __future__ import annotations

import weakref

import torch

from windtunnel.seam.torch.state.notes import Notes
from windtunnel.seam.torch.tags import BLANK, Tag, tag_of

MOVES = frozenset(
    {
        "aten::copy_", "aten::_to_copy", "aten::clone", "aten::cat", "aten::stack",
        "aten::split_with_sizes_copy", "aten::_foreach_clone",
    }
)  # fmt: skip
MOST = 1 << 14
"""Operators that are watched for the sake of what is never written nor read."""


class Unfilled:
    """What is left to be written, by its memory's tag: its name, and the number of the line that made it."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.names: weakref.WeakKeyDictionary[Tag, tuple[str, int]] = weakref.WeakKeyDictionary()
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
                    self.names[tag] = f"{kind} {name!r}", site

    def read(self, tensor: torch.Tensor, operator: str, site: int) -> None:
        """A kernel reads a tensor."""
        tag = tag_of(tensor)
        if tag.blank is BLANK and tag in self.names and not _only_moves(operator):
            name, made = self.names.pop(tag)
            line = str(self.notes.core.machine.trace.sites[made])
            self.notes.note("uninitialized-read", site, name=name, operator=operator, made=line)

    def watched(self) -> bool:
        """One more operator was seen: whether those to come have to be."""
        if not self.any:
            return False
        self._watched += 1
        if self._watched % 128 == 0:
            for tag in [tag for tag in self.names if tag.blank is not BLANK]:
                del self.names[tag]
            if self._watched > MOST:
                self.names.clear()
            self.any = bool(self.names)
        return self.any


def _only_moves(operator: str) -> bool:
    return operator in MOVES or operator.endswith("_like") or operator.startswith("aten::new_")
