"""What the program does between operators, by this machine's clocks.

By default it is measured beside the modelled clock (`state/host_work`). With `--host-time measured` it takes modelled
time, as much as it takes this machine's processor: waiting for a disk, another thread or a loader's worker does not
count, nor does computing values and the emulation itself. It is multiplied by a factor that the person states
(`--host-factor`), and what the modelled dispatch of an operator covers already (its Python call) is not counted twice.
"""

from __future__ import annotations

import threading
from time import perf_counter_ns as clock_ns
from time import thread_time_ns

from windtunnel.seam.torch.dispatch.deviations import Deviations
from windtunnel.seam.torch.dispatch.mode import Dispatch, Handler
from windtunnel.seam.torch.plans.call import Arguments, Keywords, OpOverload, Types
from windtunnel.seam.torch.state.host_work import LEAST_NS
from windtunnel.seam.torch.state.state import State

LONGEST_DISPATCH_NS = 20_000
"""Of what an operator took the host, at most so much was its dispatch (`operators/*.toml`); more was a wait."""


class MeasuredDispatch(Dispatch):
    """The dispatch mode that charges the host before each operator."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Types, args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        local = self.local
        host = self.state.host()
        before_ns = host.now_ns
        local.operators += 1  # an operator that is taken apart comes back with its parts
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            local.operators -= 1
            if not local.operators:
                local.covered_ns = min(LONGEST_DISPATCH_NS, host.now_ns - before_ns)
                local.left_ns = thread_time_ns()


FEEDING = ("aten::_to_copy", "aten::copy_", "aten::lift_fresh", "aten::lift_fresh_copy", "aten::stack", "aten::cat")
"""What takes data from the host's own memory on: gaps that end with one of these made data, as a rule."""


class WatchedDispatch(Dispatch):
    """The dispatch mode that notes how long the thread was outside of operators; other threads' modes do not."""

    def __init__(self, state: State, handlers: dict[str, Handler], deviations: Deviations) -> None:
        super().__init__(state, handlers, deviations)
        work = state.work
        self.work = work if work is not None and work.thread == threading.get_ident() else None

    def __torch_dispatch__(
        self, func: OpOverload, types: Types, args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        work = self.work
        if work is None or work.inside:
            return super().__torch_dispatch__(func, types, args, kwargs)
        now_ns = clock_ns()
        if now_ns - work.left_ns > LEAST_NS:
            work.gap(now_ns, func.name() in FEEDING)
        work.inside = True
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            work.inside = False
            work.left_ns = now_ns = clock_ns()
            if now_ns > work.due_ns:
                work.read_processor(now_ns)
