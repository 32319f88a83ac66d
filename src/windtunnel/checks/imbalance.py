"""The check `imbalance`: a rank that waits for a slower one."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Finding, Severity
from windtunnel.trace.operation import Note
from windtunnel.trace.trace import END, Trace
from windtunnel.trace.units import format_ns

LEAST_NS, LEAST_SHARE = 1_000_000, 0.05


class Imbalance(NoteCheck):
    """A rank waits for another one in its collectives.

    ## What it does
    Reports the lines at which a rank spends at least a millisecond and 5 % of the run waiting until the last rank of a
    group is ready for a collective: how long, for which rank most, and whether that rank's GPU was still at work or its
    host came late.

    ## Why it is bad
    All ranks are as slow as the slowest one. It is information only: the program is correct, and one slow rank may be
    intended.

    ## Example
    ```python
    for batch in loader:
        if rank == 0:
            log(model, batch)  # the others wait for rank 0 in the next all-reduce
        step(model, batch)
    ```

    ## Use instead
    ```python
    for step, batch in enumerate(loader):
        if step % 100 == 0:
            log(model, batch)  # on every rank alike, and seldom
        step(model, batch)
    ```
    """

    code: ClassVar = "imbalance"
    severity: ClassVar[Severity] = "info"

    def group(self, note: Note) -> str:
        """Each rank's waits stay apart."""
        detail = dict(note.detail)
        return f"{detail['rank']} {detail['operation']}"

    def findings(self, trace: Trace) -> list[Finding]:
        """The lines that cost enough of the run."""
        least_ns = max(LEAST_NS, LEAST_SHARE * max(trace.rows.column(END), default=0)) if self.lines else 0
        return [
            finding._replace(times=line.number("times"), lost_ns=line.number("waited_ns"))
            for finding, line in zip(super().findings(trace), self.lines.values(), strict=True)
            if line.number("waited_ns") >= least_ns
        ]

    def message(self, line: NotedLine) -> str:
        """How long, for whom and why."""
        other, other_ns, device_ns = (line.number(name) for name in ("other", "other_ns", "device_ns"))
        why = "whose GPU was still at work" if 2 * device_ns >= other_ns else "whose host came late"
        waited_ns = line.number("waited_ns")
        return (
            f"rank {line.number('rank')} waited {format_ns(waited_ns)} here for others in {line.word('operation')}, "
            f"{format_ns(other_ns)} of it for rank {other}, {why}"
        )

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return f"look at what rank {line.number('other')} does before this line that the others do not"
