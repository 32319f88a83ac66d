"""What a fix is to a replay: a rule that says what becomes of each row of the trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from windtunnel.cost.cache import as_reused
from windtunnel.cost.model import CostModel
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Kind, Lane, Signature
from windtunnel.trace.rows import Row
from windtunnel.trace.trace import Trace

ROWS, MOST_ROWS, ENOUGH_STEPS = 5_000, 40_000, 6
"""How much of a trace is replayed for each fix, the beginning of a long run for all of it: so many rows, or as many as
make so many steps."""
STEPS = 4
"""From so many steps on the share is that of a step, the first left out; otherwise it is that of the run."""

Line = tuple[str, int]


@dataclass
class Change:
    """What becomes of one row."""

    keep: bool = True
    gap_ns: int | None = None
    """The host's time since its row before; as it was when None."""
    scale: float = 1.0
    lead_ns: int = 0
    row: Row | None = None
    waited: bool = False
    """Whether the host waited within the call, and does so no longer."""
    first: tuple[Signature, ...] = ()
    """Kernels launched before it."""


AS_IT_WAS = Change()
GONE = Change(keep=False)


class Remedy:
    """A rule for rows. `finding` says where; `old` are the cost models of the trace's GPUs."""

    def __init__(self, trace: Trace, findings: Sequence[Finding], old: Sequence[CostModel]) -> None:
        self.trace = trace
        self.old = old
        self.lines: set[Line] = {
            (site.file, site.line) for one in findings for site in (one.site, one.other) if site.file
        }
        self.sites = {number for number, site in enumerate(trace.sites) if (site.file, site.line) in self.lines}
        self.prepare()

    def prepare(self) -> None:
        """Look at the trace as a whole before the first row."""

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """What becomes of a row; `gap_ns` is the host's time since the row before it in its thread."""
        raise NotImplementedError

    def shortest_ns(self, after_ns: float) -> float:
        """The window with the change, at least what work that goes on elsewhere leaves of it."""
        return after_ns

    def name(self, row: Row) -> str:
        """The name of a row's signature."""
        return self.trace.signatures[row[2]].name

    def another(
        self, row: Row, lane: Lane, signature: Signature, gap_ns: int, first: tuple[Signature, ...] = ()
    ) -> Change:
        """Another kernel in a row's place, the host's time for its call with it."""
        model = self.old[lane.device]
        signature = as_reused(signature, self.trace.signatures[row[2]])
        length_ns = model.kernel(signature).duration_ns
        gap_ns += model.dispatch_ns(signature.name) - model.dispatch_ns(self.name(row))
        size_bytes = signature.read_bytes + signature.written_bytes
        row_now = (int(Kind.KERNEL), row[1], self.trace.signatures.number(signature), *row[3:7], size_bytes)
        return Change(gap_ns=max(0, gap_ns), scale=length_ns / max(1, row[6] - row[5]), row=row_now, first=first)

    def pinned(self, row: Row, lane: Lane) -> Change:
        """A copy from or to pinned memory, which the host does not wait for."""
        signature = self.trace.signatures[row[2]]
        if "Pageable" not in signature.name:
            return AS_IT_WAS
        ends = (-1, lane.device) if "HtoD" in signature.name else (lane.device, -1)
        pinned_ns = self.old[lane.device].copy_ns(row[7], *ends, True)
        changed = signature._replace(name=signature.name.replace("Pageable", "Pinned"))
        row_now = (*row[:2], self.trace.signatures.number(changed), *row[3:])
        waited = ("non_blocking", 1) in signature.detail
        return Change(scale=pinned_ns / max(1, row[6] - row[5]), row=row_now, waited=waited)


def rows_of(trace: Trace) -> Iterator[Row]:
    """The rows of a trace that are looked at."""
    looked_at = islice(iter(trace.rows), MOST_ROWS)
    steps = (index for index, row in enumerate(looked_at) if row[0] == Kind.STEP)
    enough = next(islice(steps, ENOUGH_STEPS, None), MOST_ROWS)
    return islice(iter(trace.rows), min(MOST_ROWS, max(ROWS, enough + 2)))
