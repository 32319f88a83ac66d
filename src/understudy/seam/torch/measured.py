"""`--host-time measured`: the program's own time between operators is this machine's."""

from __future__ import annotations

from time import perf_counter_ns as clock_ns
from typing import Any

from understudy.seam.torch.dispatch import Dispatch, Handler
from understudy.seam.torch.state import State


class MeasuredDispatch(Dispatch):
    """The same, with the program's own time between operators as it passes on this machine.

    What the emulation itself takes, computing values included, is left out; the modelled cost of dispatching an
    operator stays.
    """

    def __init__(self, state: State, handlers: dict[str, Handler]) -> None:
        super().__init__(state, handlers)
        self._left_ns = clock_ns()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        now_ns = clock_ns()
        self.local.host.now_ns += max(0, now_ns - self._left_ns)
        self._left_ns = now_ns  # an operator that is taken apart comes back with its parts
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._left_ns = clock_ns()
