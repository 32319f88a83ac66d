"""Threads: each has its own host clock, forked at its start and joined at its join, and enters the dispatch mode.

A thread that outlives its emulation goes on as a thread of a machine without GPUs: its operators are the CPU's own.

PyTorch makes the object of an operator when a dispatch mode first meets it, and C++ keeps it without owning it
(`getTorchApiFunction` of torch/csrc/PyInterpreter.cpp): where two threads meet it at once, each makes one, the second
replaces the first, and C++ goes on with an object that is gone. So each is made once, in turns.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from time import monotonic, sleep
from typing import TYPE_CHECKING

import torch

from windtunnel.machine import exclusive
from windtunnel.seam.patching import Patch
from windtunnel.seam.sites import OURS
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Result, Types
from windtunnel.seam.torch.state.state import State

if TYPE_CHECKING:
    from windtunnel.machine.clock import HostThread

    class ProgramThread(threading.Thread):
        """A thread of the program, with its clock while it runs."""

        _wt_host: HostThread | None


SEAM = os.path.join(OURS, "seam") + os.sep
PATIENCE_S, PAUSE_S = 2.0, 0.0005


def _plain(
    self: object, func: OpOverload, types: Types, args: Arguments = (), kwargs: Keywords | None = None
) -> Result:
    """The dispatch of a mode whose emulation has ended: the operator as it is."""
    return func(*args, **(kwargs or {}))


def _stopped(self: object, *_: object) -> Result:
    """The dispatch of a mode whose process ends: its thread goes no further."""
    _NEVER.acquire()
    return None


_NEVER = threading.Lock()
_NEVER.acquire()


def _made_once(state: State, kind: type) -> Patch:
    """What makes the objects of operators, or of their overloads, where there is none yet."""
    stock = kind.__getattr__  # type: ignore[attr-defined]

    def made(self: object, name: str, /) -> object:
        with state.machine.turns.lock:
            found = vars(self).get(name)  # another thread has made it meanwhile
            return stock(self, name) if found is None else found

    return Patch(kind, "__getattr__", made)


def _become(mode: Dispatch, dispatch: Callable[..., Result]) -> None:
    """A class of its own, with all the rest: an operator that runs now still needs it."""
    mode.__class__ = type("Ended", (type(mode),), {"__torch_dispatch__": dispatch})


class Threads:
    """The threads that were started under an emulation and that run."""

    def __init__(self, state: State, mode: Dispatch) -> None:
        self.state = state
        self.mode = mode
        self._modes: dict[int, Dispatch] = {}
        self._code: frozenset[object] = frozenset()

    def patches(self) -> list[Patch]:
        """The methods of `threading.Thread` to replace, and what operators' objects are made by."""
        thread = threading.Thread
        stock_start, stock_join, stock_run = thread.start, thread.join, thread._bootstrap_inner  # type: ignore[attr-defined]
        state, mode, modes = self.state, self.mode, self._modes
        machine = state.machine

        def start(self: ProgramThread) -> None:
            self._wt_host = machine.fork(state.host())
            stock_start(self)

        def join(self: ProgramThread, timeout: float | None = None) -> None:
            stock_join(self, timeout)
            child = getattr(self, "_wt_host", None)
            if child is not None and not self.is_alive():
                self._wt_host = None
                machine.join(state.host(), child)

        def bootstrap(self: object) -> None:
            child = getattr(self, "_wt_host", None)
            if child is None:
                stock_run(self)
                return
            number = threading.get_ident()
            state.parents[number] = child
            modes[number] = mode.again()
            try:
                with modes[number]:
                    stock_run(self)
            finally:
                modes.pop(number, None)

        self._code = frozenset({start.__code__, join.__code__, bootstrap.__code__})
        return [
            Patch(thread, "start", start),
            Patch(thread, "join", join),
            Patch(thread, "_bootstrap_inner", bootstrap),
            _made_once(state, torch._ops._OpNamespace),
            _made_once(state, torch._ops.OpOverloadPacket),
        ]

    def let_go(self) -> None:
        """Turn the modes of threads that go on into none, and wait until none of them is inside an operator of ours."""
        numbers = [*self._modes]
        for mode in (self.mode, *self._modes.values()):
            _become(mode, _plain)
        self._wait_for(numbers)
        self._modes.clear()

    def stop(self) -> None:
        """Let the threads that still run stop for good at their next operator, and wait until none is in another.

        The caller holds the machine's lock, and keeps it.
        """
        modes = dict(self._modes)
        for mode in modes.values():
            _become(mode, _stopped)
        self._wait_for(modes)
        self._modes.clear()

    def _wait_for(self, numbers: Iterable[int]) -> None:
        until = monotonic() + PATIENCE_S
        while any(map(self._busy, numbers)) and monotonic() < until:
            sleep(PAUSE_S)

    def _busy(self, number: int) -> bool:
        frame = sys._current_frames().get(number)
        if frame is not None and (frame.f_code is _stopped.__code__ or exclusive.waits(frame)):
            return False
        while frame is not None:
            if frame.f_code.co_filename.startswith(SEAM) and frame.f_code not in self._code:
                return True
            frame = frame.f_back
        return False
