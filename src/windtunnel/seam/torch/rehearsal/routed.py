"""Which parameters a program uses after it has asked where its tokens go: with data, ranks may not use all of them."""

from __future__ import annotations

import sys
import weakref
from types import FrameType

from torch import nn

from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.state.state import State

USE = "parameter-use"
"""The notes' code, which `windtunnel.ranks.decisions` reads."""


class Routed:
    """The lines at which parameters are used from the first answer on that is each rank's own.

    FSDP2 reduces the gradients that there are, and DistributedDataParallel waits for all of them, unless one of
    `zeros` says that what lacks gradients is reduced as zeros.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.asked = False
        self.excused = False
        self.zeros: list[tuple[weakref.ref[object], str]] = []  # what reduces, and its attribute
        self.sites: set[int] = set()
        self._seen: set[int] = set()
        state.notes.at_end.append(self.tell)

    def ran(self, call: Call) -> None:
        """An operator was run: each of its callers in the program uses its parameters."""
        for value in call.args:
            if isinstance(value, nn.Parameter) and value.requires_grad and id(value) not in self._seen:
                self._seen.add(id(value))
                self.excused |= any(getattr(reducer(), name, False) for reducer, name in self.zeros)
                frame: FrameType | None = sys._getframe(1)
                while frame is not None:
                    if self.state.sites.is_program(frame):
                        self.sites.add(self.state.sites.of(frame))
                    frame = frame.f_back

    def tell(self) -> None:
        """The program ends."""
        for site in sorted(self.sites) if not self.excused else ():
            self.state.notes.note(USE, site)
