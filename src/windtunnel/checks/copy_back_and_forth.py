"""The check `copy-back-and-forth`: data that goes to the host and straight back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from windtunnel.checks import Check
from windtunnel.checks._copies import detail, to_device, to_host
from windtunnel.checks._work import Work
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Kind, Site
from windtunnel.trace.trace import Record, Trace
from windtunnel.trace.units import format_bytes, times

NEAR = 4  # kernels between leaving and coming back
MOST = 0.9  # of a line's tensors that must come straight back: of those that are offloaded to save memory few do
REPEATS = 3  # once may be deliberate: a checkpoint, a random state


@dataclass
class Pair:
    """Round trips between two source lines."""

    out: Site
    back: Site
    device: int
    times: int = 0
    size_bytes: int = 0
    later: int = 0  # that came back after more kernels


class CopyBackAndForth(Check):
    """Data that goes to the host and straight back.

    ## What it does
    Looks for tensors that were copied from a device to the host and, within the next four kernels, from there to a
    device again, three times or more. Activations and states that are offloaded to save memory usually stay on the host
    for longer; such lines are not reported.

    ## Why it is bad
    Both copies cross the slow link, and the first one makes the host wait for all work queued before it.

    ## Example
    ```python
    for x in batches:
        scores = net(x).cpu()
        loss = criterion(scores.to("cuda"), y)
    ```

    ## Use instead
    ```python
    for x in batches:
        loss = criterion(net(x), y)
    ```
    """

    code: ClassVar = "copy-back-and-forth"
    costs: ClassVar = True
    kinds: ClassVar = frozenset({Kind.COPY})
    parts: ClassVar = {"work": Work}
    work: Work
    supersedes: ClassVar = frozenset({"pageable-copy", "host-sync"})

    def __init__(self) -> None:
        self.left: dict[int, tuple[Record, int]] = {}  # host storage -> the copy that filled it, kernels so far
        self.pairs: dict[tuple[str, int, str, int], Pair] = {}

    def see(self, record: Record, trace: Trace) -> None:
        """Follow host memory that a device has filled."""
        if to_host(record):
            storage = detail(record, "destination")
            if storage is not None:
                self.left[storage] = record, self.work.kernels
        elif to_device(record):
            source = detail(record, "source")
            if source is None or source not in self.left:
                return
            out, kernels = self.left.pop(source)
            self._count(out, record, self.work.kernels - kernels <= NEAR)

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding a pair of lines."""
        return [
            Finding(
                self.code,
                self.severity,
                f"a tensor went to the host ({pair.out}) and straight back {times(pair.times)}: "
                f"{format_bytes(pair.size_bytes)} over the link",
                "leave it on the device",
                pair.back,
                pair.out,
                times=pair.times,
                size_bytes=pair.size_bytes,
                device=pair.device,
                fix="no copy",
            )
            for pair in self.pairs.values()
            if pair.times >= REPEATS and pair.times >= MOST * (pair.times + pair.later)
        ]

    def _count(self, out: Record, back: Record, near: bool) -> None:
        key = (out.site.file, out.site.line, back.site.file, back.site.line)
        pair = self.pairs.setdefault(key, Pair(out.site, back.site, back.lane.device))
        if not near:
            pair.later += 1
            return
        pair.times += 1
        pair.size_bytes += out.value + back.value
