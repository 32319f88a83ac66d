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


CALL = nn.Module._call_impl.__code__
"""The frame in which a module is called."""


class Routed:
    """The lines at which parameters are used from the first answer on that is each rank's own.

    FSDP2 reduces the gradients that there are, and DistributedDataParallel waits for all of them, unless they are told
    to reduce zeros for what lacks gradients. That helps where their module was called: FSDP2 gathers it in the call.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.asked = False
        self.reducers: weakref.WeakKeyDictionary[nn.Module, tuple[weakref.ref[object], str]] = (
            weakref.WeakKeyDictionary()
        )  # by module: what reduces its gradients, and the attribute by which it reduces zeros too
        self.sites: set[int] = set()
        self._seen: set[int] = set()
        state.notes.at_end.append(self.tell)

    def ran(self, call: Call) -> None:
        """An operator was run: each of its callers in the program uses its parameters."""
        for value in call.args:
            if isinstance(value, nn.Parameter) and value.requires_grad and id(value) not in self._seen:
                self._seen.add(id(value))
                self._used_by(sys._getframe(1))

    def _used_by(self, frame: FrameType | None) -> None:
        """Remember the callers at whose lines ranks may wait: not those inside a module that reduces zeros."""
        inside: list[int] = []
        outside: list[int] = []
        sites, excused = inside, False
        while frame is not None:
            if self.state.sites.is_program(frame):
                sites.append(self.state.sites.of(frame))
            if sites is inside and frame.f_code is CALL and (known := self.reducers.get(frame.f_locals["self"])):
                sites, excused = outside, bool(getattr(known[0](), known[1], False))
            frame = frame.f_back
        self.sites.update(outside if excused else inside + outside)

    def tell(self) -> None:
        """The program ends."""
        for site in sorted(self.sites):
            self.state.notes.note(USE, site)
