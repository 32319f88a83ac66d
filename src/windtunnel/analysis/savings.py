"""What following a finding's advice would save: the trace replayed on the same GPUs with that one change.

Each fix is a rule for rows: a wait that is left out, a copy priced as pinned, kernels that a graph launches, work that
one GPU does instead of several. The machine's rules place everything else anew, so a wait whose time another one would
take saves nothing, and neither does a faster copy behind a busy host. What is compared are two replays of the same
rows, with and without the change; what happens once (contexts, libraries) is left out of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.analysis.fixes import REMEDIES, WAITS, OneGpu
from windtunnel.analysis.retime import Host, Retiming, cost_models, gpus_of
from windtunnel.analysis.rule import AS_IT_WAS, STEPS, Change, Remedy, rows_of
from windtunnel.errors import FileFormatError
from windtunnel.gpus.gpu import Gpu
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import FIRST_USE, Kind, Lane
from windtunnel.trace.rows import Row
from windtunnel.trace.trace import Trace


@dataclass(frozen=True)
class Saving:
    """A share of the step or of the run, and whether it takes the other waits' fixes as well."""

    share: float
    of: str
    before_ns: float
    after_ns: float
    together: bool = False


class _Changed(Retiming):
    """A replay in which a remedy changes rows."""

    def __init__(self, trace: Trace, gpus: list[Gpu], cuda: tuple[int, int], remedy: Remedy | None) -> None:
        super().__init__(trace, gpus, gpus, cuda)
        self.remedy = remedy
        self.ends_ns: list[int] = []
        self.began_ns: int | None = None
        self.until_ns = 0

    def replay(self) -> Window:
        """All rows that are looked at."""
        for index, row in enumerate(rows_of(self.trace)):
            self._change(index, row)
        if len(self.ends_ns) >= STEPS:
            return Window("step", (self.ends_ns[-1] - self.ends_ns[0]) / (len(self.ends_ns) - 1), len(self.ends_ns) - 1)
        return Window("run", self.until_ns - self.began_ns if self.began_ns is not None else 0)

    def _change(self, index: int, row: Row) -> None:
        kind, lane_number, number, _, issued, _, end, _ = row
        lane = self.trace.lanes[lane_number]
        host = self._following(lane, issued)
        gap_ns = issued - host.before_ns
        if kind == Kind.HOST and self.trace.signatures[number].name.startswith(FIRST_USE):
            host.before_ns = end
            return
        change = AS_IT_WAS if self.remedy is None else self.remedy.change(index, row, lane, gap_ns)
        if change.gap_ns is not None:
            host.before_ns = issued - change.gap_ns
        if not change.keep:
            host.now_ns += issued - host.before_ns
            host.before_ns = max(issued, end if kind in (Kind.SYNCHRONIZE, Kind.HOST, Kind.QUEUE) else issued)
            return
        for first in change.first:
            model = self.old[lane.device]
            issued_ns, host.before_ns = host.before_ns, issued - model.dispatch_ns(first.name)
            self.scale = model.kernel(first).duration_ns / max(1, end - row[5])
            self.take((*row[:2], self.trace.signatures.number(first), *row[3:]))
            host.before_ns = issued_ns
        self.scale, self.lead_ns = change.scale, change.lead_ns
        self.take(row if change.row is None else change.row)
        if change.waited:
            host.before_ns = max(host.before_ns, end)
        if kind <= Kind.COLLECTIVE:
            made = self.out.rows[-1] if self.out.rows[-1][0] != Kind.QUEUE else self.out.rows[-2]
            if self.began_ns is None and kind == Kind.KERNEL:  # what comes before it is set-up
                self.began_ns = made[4]
            self.until_ns = max(self.until_ns, made[6])
        elif kind == Kind.STEP:
            self.ends_ns.append(max(self.until_ns, host.now_ns))

    def _following(self, lane: Lane, issued: int) -> Host:
        """The thread of a row, brought up to the one that was at work last: it began there, or waited for it."""
        host = self.host(lane.thread, issued)
        for other in self.hosts.values():
            if host.before_ns < other.before_ns <= issued:
                host.before_ns, host.now_ns = other.before_ns, other.now_ns
        return host


@dataclass
class Window:
    """How long a step takes, or the run, and of how many steps that is the mean."""

    of: str
    length_ns: float
    steps: int = 1


class Savings:
    """The savings of one trace's findings.

    Raises:
        FileFormatError: the trace does not say which GPUs it is of.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.gpus = gpus_of(trace)
        devices = max((lane.device for lane in trace.lanes), default=-1)
        if not self.gpus or devices >= len(self.gpus):
            raise FileFormatError("the trace contains work on devices that it does not describe")
        version = trace.facts.get("cuda_version", (11, 2))
        self.cuda = (int(version[0]), int(version[1]))
        self.old = cost_models(trace, self.gpus, self.cuda)
        self.before = _Changed(trace, self.gpus, self.cuda, None).replay()

    def of(self, findings: Sequence[Finding]) -> Saving | None:
        """What the fixes of some findings, all of one kind, save; None where nothing can be compared."""
        fix = findings[0].fix
        if not fix or self.before.length_ns <= 0:
            return None
        remedy = REMEDIES[fix](self.trace, findings, self.old)
        after = _Changed(self.trace, self.gpus, self.cuda, remedy).replay()
        after_ns = remedy.shortest_ns(after.length_ns * after.steps) / after.steps
        if fix == "one GPU" and isinstance(remedy, OneGpu) and not remedy.replicas:
            after_ns *= _ranks(self.trace)  # one GPU takes the ranks' batches one after the other
        share = 1.0 - after_ns / self.before.length_ns
        return Saving(share, self.before.of, self.before.length_ns, after_ns)

    def of_waits(self, findings: Sequence[Finding]) -> Saving | None:
        """What leaving out all of several lines' waits saves, those of pageable copies among them."""
        remedies = [REMEDIES[fix](self.trace, [one for one in findings if one.fix == fix], self.old) for fix in WAITS]
        after = _Changed(self.trace, self.gpus, self.cuda, _Both(self.trace, remedies)).replay()
        share = 1.0 - after.length_ns / self.before.length_ns if self.before.length_ns > 0 else 0.0
        return Saving(share, self.before.of, self.before.length_ns, after.length_ns, True)


class _Both(Remedy):
    """Several rules, of which the first that changes a row holds."""

    def __init__(self, trace: Trace, remedies: Sequence[Remedy]) -> None:
        self.remedies = remedies
        super().__init__(trace, [], [])

    def change(self, index: int, row: Row, lane: Lane, gap_ns: int) -> Change:
        """The first rule's change."""
        for remedy in self.remedies:
            change = remedy.change(index, row, lane, gap_ns)
            if change is not AS_IT_WAS:
                return change
        return AS_IT_WAS


def _ranks(trace: Trace) -> int:
    return max((int(dict(one.detail).get("ranks", 1)) for one in trace.signatures if "nccl" in one.name), default=1)
