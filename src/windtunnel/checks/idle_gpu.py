"""The check `idle-gpu`: devices that wait for the host to prepare their input."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks import Check
from windtunnel.checks._idle import ALL, Gaps
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import UNKNOWN_SITE
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_ns, format_share, plural

MIN_PAUSES = 5  # fewer are set-up, evaluation or a checkpoint
MIN_NS = 10_000_000  # of idle time in all: a shorter program is a test, and nobody waits for it
MIN_SHARE = 0.3  # of the run, without the longest pause: below that, other work hides most of it


class IdleGpu(Check):
    """Devices that wait for the host to prepare their input.

    ## What it does
    Adds up the long gaps (over 100 µs) in which no device has anything to do and that no host synchronization
    explains, and reports them where they add up to more than 30 % of the run and to 10 ms or more. The longest gap is
    left out: it may be set-up.

    ## Why it is bad
    You pay for a device while it waits. Usually it waits for data: reading, decoding, augmenting in the main process.

    ## Example
    ```python
    loader = DataLoader(images, batch_size=64)
    for x, y in loader:
        train_step(x.to("cuda"), y.to("cuda"))
    ```

    ## Use instead
    ```python
    loader = DataLoader(images, batch_size=64, num_workers=4, pin_memory=True, persistent_workers=True)
    for x, y in loader:
        train_step(x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True))
    ```
    """

    code: ClassVar = "idle-gpu"
    costs: ClassVar = True
    parts: ClassVar = {"gaps": Gaps}
    gaps: Gaps

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding, at the line that ended most of the idle time."""
        return self._idle(MIN_SHARE)

    def candidates(self, trace: Trace) -> list[Finding]:
        """The same, however small a part of the run it was."""
        return self._idle(0.0)

    def _idle(self, share: float) -> list[Finding]:
        idle = self.gaps.devices.get(ALL)
        if idle is None or idle.pauses < MIN_PAUSES or idle.pause_ns < MIN_NS:
            return []
        if idle.pause_ns - idle.longest_ns <= share * idle.window_ns:
            return []
        sites = idle.sites.most_common(1)
        return [
            Finding(
                self.code,
                self.severity,
                f"all GPUs were idle {format_share(idle.pause_ns / idle.window_ns)} of the run: "
                f"{plural(idle.pauses, 'pause')} of {format_ns(idle.pause_ns / idle.pauses)} on average while the host "
                "did something else",
                "prepare the input in other processes (`DataLoader(num_workers=4, pin_memory=True)`), or ahead of time",
                sites[0][0] if sites else UNKNOWN_SITE,
                times=idle.pauses,
                lost_ns=idle.pause_ns,
                fix="workers",
            )
        ]
