"""The check `many-small-copies`: data that travels to a device in crumbs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from windtunnel.checks import Check
from windtunnel.checks._copies import SMALL_BYTES, detail, to_device
from windtunnel.checks._work import Work
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Kind, Site
from windtunnel.trace.trace import Record, Trace
from windtunnel.trace.units import format_bytes, plural

MANY_IN_A_ROUND = 16  # copies of one line between two kernels, again and again: a batch has a handful of tensors
MANY_AT_ONCE = 2_000  # copies of one line with no kernel in between: checkpoints have fewer tensors
ROUNDS = 3


@dataclass
class SmallCopies:
    """The small copies of one source line."""

    site: Site
    device: int
    times: int = 0
    size_bytes: int = 0
    rounds: int = 0
    last_round: int = -1


class ManySmallCopies(Check):
    """Data copied to a device in many small pieces.

    ## What it does
    Looks for source lines that copy at least 16 small pieces (64 KiB or less each) to a device between one kernel and
    the next, three times or more, or 2,000 pieces at once. Parameters and buffers that `module.to(device)` moves do
    not count: they cannot be moved otherwise.

    ## Why it is bad
    Each copy costs the host several microseconds and the link a fixed latency, however few bytes it moves. A thousand
    copies of one kilobyte take hundreds of times as long as one copy of a megabyte.

    ## Example
    ```python
    batch = torch.stack([sample.to("cuda") for sample in samples])
    ```

    ## Use instead
    ```python
    batch = torch.stack(samples).to("cuda")
    ```
    """

    code: ClassVar = "many-small-copies"
    costs: ClassVar = True
    kinds: ClassVar = frozenset({Kind.COPY})
    parts: ClassVar = {"work": Work}
    work: Work
    supersedes: ClassVar = frozenset({"pageable-copy", "host-sync"})

    def __init__(self) -> None:
        self.lines: dict[tuple[str, int], SmallCopies] = {}

    def see(self, record: Record, trace: Trace) -> None:
        """Count small copies to a device by line and by the kernels between them."""
        if not to_device(record) or record.value > SMALL_BYTES or detail(record, "module"):
            return
        line = self.lines.setdefault((record.site.file, record.site.line), SmallCopies(record.site, record.lane.device))
        line.times += 1
        line.size_bytes += record.value
        if line.last_round != self.work.kernels:
            line.rounds += 1
            line.last_round = self.work.kernels

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding a line."""
        return [self._finding(line) for line in self.lines.values() if _many(line)]

    def _finding(self, line: SmallCopies) -> Finding:
        return Finding(
            self.code,
            self.severity,
            f"{plural(line.times, 'copy')} moved {format_bytes(line.size_bytes)} to cuda:{line.device}, "
            f"{format_bytes(line.size_bytes / line.times)} each: starting them costs more than moving the bytes",
            "stack the pieces on the host and copy once",
            line.site,
            times=line.times,
            size_bytes=line.size_bytes,
            device=line.device,
            fix="one copy",
        )


def _many(line: SmallCopies) -> bool:
    if line.rounds >= ROUNDS:
        return line.times >= MANY_IN_A_ROUND * line.rounds
    return line.times >= MANY_AT_ONCE
