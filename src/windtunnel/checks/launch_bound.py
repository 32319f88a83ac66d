"""The check `launch-bound`: kernels so small that the device waits for the host to launch the next."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks import Check
from windtunnel.checks._idle import ALL, Gaps, Idle
from windtunnel.trace.finding import Finding
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_ns, format_share, plural

MIN_KERNELS = 2_000  # about 20 ms of launching: a shorter program is over before a change would pay
MIN_SHARE = 0.5  # of the run spent waiting for launches: then more than half could be won


class LaunchBound(Check):
    """Kernels so small that the device waits for the host to launch the next.

    ## What it does
    Adds up the short gaps (at most 100 µs) between the operations of a device that no host synchronization explains,
    and reports a device that spent more than half of the run in them over at least 2,000 kernels. Of
    `nn.DataParallel`, whose threads no CUDA graph takes in, [data-parallel](data-parallel.md) says what helps.

    ## Why it is bad
    Issuing an operation costs the host some microseconds, whatever its size. A kernel that takes less than that leaves
    the device idle most of the time, and a faster GPU makes no difference.

    ## Example
    ```python
    net = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 1)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, foreach=False)
    for x, y in DataLoader(data, batch_size=8):
        train_step(net, optimizer, x, y)
    ```

    ## Use instead
    ```python
    net = torch.compile(net, mode="reduce-overhead")  # CUDA graphs
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, fused=True)
    for x, y in DataLoader(data, batch_size=512):
        train_step(net, optimizer, x, y)
    ```
    """

    code: ClassVar = "launch-bound"
    costs: ClassVar = True
    parts: ClassVar = {"gaps": Gaps}
    gaps: Gaps

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding: the device that lost most."""
        return self._bound(trace, MIN_SHARE)

    def candidates(self, trace: Trace) -> list[Finding]:
        """The device that lost most, however little."""
        return self._bound(trace, 0.0)

    def _bound(self, trace: Trace, share: float) -> list[Finding]:
        if any(note.code == "data-parallel" for note in trace.notes):
            return []
        bound = [
            idle
            for idle in self.gaps.devices.values()
            if idle.device != ALL and idle.kernels >= MIN_KERNELS and idle.launch_ns > share * idle.window_ns
        ]
        return [self._finding(trace, max(bound, key=lambda idle: idle.launch_ns))] if bound else []

    def _finding(self, trace: Trace, idle: Idle) -> Finding:
        fused = any(signature.name.startswith("aten::_fused_") for signature in trace.signatures)
        return Finding(
            self.code,
            self.severity,
            f"cuda:{idle.device} spent {format_share(idle.launch_ns / idle.window_ns)} of the run waiting for "
            f"launches: {plural(idle.kernels, 'kernel')} of {format_ns(idle.kernel_ns / idle.kernels)} on average",
            'launch the step as one CUDA graph (`torch.cuda.graph`, `torch.compile(mode="reduce-overhead")`)'
            f"{'' if fused else ' with a `fused` optimizer'}, or give each kernel more to do: a larger batch",
            self.gaps.home(),
            times=idle.kernels,
            lost_ns=idle.launch_ns,
            device=idle.device,
            fix="graphs",
        )
