"""Threads: each has its own host clock, forked at its start and joined at its join, and enters the dispatch mode."""

from __future__ import annotations

import threading
from typing import Any

from understudy.seam.patching import Patch
from understudy.seam.torch.dispatch.mode import Dispatch
from understudy.seam.torch.state.state import State


def patches(state: State, mode: Dispatch) -> list[Patch]:
    """The methods of `threading.Thread` to replace."""
    thread = threading.Thread
    stock_start, stock_join, stock_run = thread.start, thread.join, thread._bootstrap_inner  # type: ignore[attr-defined]
    machine = state.machine

    def start(self: Any) -> None:
        self._us_host = machine.fork(state.host())
        stock_start(self)

    def join(self: Any, timeout: float | None = None) -> None:
        stock_join(self, timeout)
        child = getattr(self, "_us_host", None)
        if child is not None and not self.is_alive():
            self._us_host = None
            machine.join(state.host(), child)

    def bootstrap(self: Any) -> None:
        child = getattr(self, "_us_host", None)
        if child is None:
            stock_run(self)
            return
        state.parents[threading.get_ident()] = child
        with mode.again():
            stock_run(self)

    return [Patch(thread, "start", start), Patch(thread, "join", join), Patch(thread, "_bootstrap_inner", bootstrap)]
