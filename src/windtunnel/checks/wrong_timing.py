"""The check `wrong-timing`: a clock read while the device is still at the work that is being timed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

from windtunnel.checks import Check
from windtunnel.checks._work import Work
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Kind, Site
from windtunnel.trace.trace import Record, Trace
from windtunnel.trace.units import format_ns

WRONG_SHARE = 0.1  # of the measured time that was still to come: timings vary by less than that from run to run
CLOCK_CALL = re.compile(
    r"\b(time|time_ns|perf_counter|perf_counter_ns|monotonic|monotonic_ns|process_time|default_timer|timer|timeit|"
    r"repeat|autorange|clock|now)\("
)
DIFFERENCE = re.compile(CLOCK_CALL.pattern + r"\s*\)\s*-")
"""A reading from which an earlier one is subtracted: it ends a measurement and starts none."""


class Reading(NamedTuple):
    """A clock that was read, and the work that was still to come then."""

    time_ns: int
    pending_ns: int
    site: Site


@dataclass
class Measured:
    """The measurements between two lines, and the wrong ones among them."""

    first: Site
    second: Site
    device: int
    times: int = 0
    measured_ns: int = 0
    missing_ns: int = 0
    all_measured_ns: int = 0
    """Every measurement between the lines, including the correct ones."""

    def matters(self) -> bool:
        """Whether all measurements together are too short, not a few of a loop that is on its way to a steady step."""
        return self.missing_ns > WRONG_SHARE * self.all_measured_ns


class WrongTiming(Check):
    """A clock read while the device is still busy with the work being timed.

    ## What it does
    Looks at two readings of the same clock in one thread with device work issued in between, and reports the second
    when a tenth of the measured time or more of that work was still to come. In a loop that times each step, what the
    first reading left behind is waited for in the measured time, and balances what the second leaves. Readings inside
    libraries do not count, and `time.time() - start` begins no measurement. Where one rank measures correctly between
    two lines, another rank that neither reads its loss there nor prints a time is not reported.

    ## Why it is bad
    A call returns as soon as the work is queued. What is measured is the time to queue it: the result looks ten or a
    hundred times too fast, and the time turns up later, in whatever waits first.

    ## Example
    ```python
    start = time.perf_counter()
    y = x @ x
    print(time.perf_counter() - start)
    ```

    ## Use instead
    ```python
    torch.cuda.synchronize()
    start = time.perf_counter()
    y = x @ x
    torch.cuda.synchronize()
    print(time.perf_counter() - start)
    ```
    """

    code: ClassVar = "wrong-timing"
    kinds: ClassVar = frozenset({Kind.CLOCK_READ})
    parts: ClassVar = {"work": Work}
    work: Work

    def __init__(self) -> None:
        self.readings: dict[tuple[int, str], Reading] = {}  # that may begin a measurement
        self.latest_ns: dict[tuple[int, str], int] = {}  # of every reading
        self.measured: dict[tuple[str, int, str, int], Measured] = {}

    def see(self, record: Record, trace: Trace) -> None:
        """Follow clocks and the work between their readings."""
        thread = record.lane.thread
        text = trace.line(record.site)
        if text and not CLOCK_CALL.search(text):
            return
        key = thread, record.signature.name
        before = self.readings.get(key)
        latest = self.work.latest(thread)
        pending_ns = 0 if latest is None else max(0, latest.end_ns - record.issued_ns)
        if before is None or not DIFFERENCE.search(text):
            self.readings[key] = Reading(record.issued_ns, pending_ns, record.site)
        latest_ns, self.latest_ns[key] = self.latest_ns.get(key, 0), record.issued_ns
        if before is not None and latest is not None and latest.issued_ns > latest_ns:
            self._compare(before, record, latest, pending_ns - before.pending_ns)

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding a pair of lines."""
        return [self._finding(wrong) for wrong in self.measured.values() if wrong.matters()]

    def excused(self, finding: Finding, others: Sequence[Self]) -> bool:
        """Where only one rank waits for its device and prints times, the other ranks' clocks are read for nothing."""
        key = _lines(finding.other, finding.site)
        return any(key in other.measured and not other.measured[key].matters() for other in others)

    def _compare(self, before: Reading, record: Record, work: Record, missing_ns: int) -> None:
        measured_ns = record.issued_ns - before.time_ns
        first, second = before.site, record.site
        found = self.measured.setdefault(_lines(first, second), Measured(first, second, work.lane.device))
        found.all_measured_ns += measured_ns
        if missing_ns > WRONG_SHARE * measured_ns:
            found.times += 1
            found.measured_ns += measured_ns
            found.missing_ns += missing_ns

    def _finding(self, wrong: Measured) -> Finding:
        return Finding(
            self.code,
            self.severity,
            f"the time since {wrong.first} is too short: {format_ns(wrong.measured_ns)} were measured with "
            f"{format_ns(wrong.missing_ns)} of the device's work still to run",
            "call `torch.cuda.synchronize()` before each reading of the clock, or time with "
            "`torch.cuda.Event(enable_timing=True)`",
            wrong.second,
            wrong.first,
            times=wrong.times,
            device=wrong.device,
        )


def _lines(first: Site, second: Site) -> tuple[str, int, str, int]:
    return first.file, first.line, second.file, second.line
