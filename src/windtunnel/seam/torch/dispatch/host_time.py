"""What the program does between operators, by this machine's clocks.

By default it is measured beside the modelled clock (`state/host_work`). With `--host-time measured` it takes modelled
time, as much as it takes this machine's processor: waiting for a disk, another thread or a loader's worker does not
count, nor does computing values and the emulation itself. It is multiplied by a factor that the person states
(`--host-factor`), and what the modelled dispatch of an operator covers already (its Python call) is not counted twice.
"""

from __future__ import annotations

from time import thread_time_ns

from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Types

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
