"""How long a device stood idle because the host had waited for it.

While the host waits in a synchronization it issues nothing, so the device's queue runs dry: after the wait the device
has nothing to do until the host has issued the next kernel or copy. Without the wait that could have been queued
earlier, by at most the time of the wait. So of the idle time between two operations of a device, a synchronization
between them has cost `min(wait, idle time)`. A wait after which nothing comes has cost nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from windtunnel.checks._work import Work
from windtunnel.trace.operation import UNKNOWN_SITE, Kind, Site
from windtunnel.trace.trace import Record

LOST_SHARE = 0.005  # of the time that the devices were in use: below half a percent nobody would measure a difference
LOOP_ROUNDS = 10  # as often, with kernels in between, before a line counts as part of a loop: fewer are a summary


def _key(record: Record, copy: Record | None) -> tuple[str, int, str]:
    detail = () if copy is None else copy.signature.detail
    return record.site.file, record.site.line, next((str(value) for name, value in detail if name == "library"), "")


class UnchargedWait(NamedTuple):
    """One synchronization that has not yet been charged."""

    record: Record
    copy: Record | None  # the copy that the host waited for, when it was one

    @property
    def line(self) -> tuple[str, int, str]:
        """File, line, and the place in the library that the line calls, if any: what incidents are grouped by."""
        return _key(self.record, self.copy)


@dataclass
class StalledLine:
    """All incidents of one source line."""

    site: Site
    device: int
    times: int = 0
    rounds: int = 0  # incidents with kernels in between
    last_round: int = -1
    wait_ns: int = 0
    lost_ns: int = 0
    size_bytes: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    library: str = ""  # "package/file.py:12", where the program's line is a call into a library

    @property
    def where(self) -> str:
        """ " in package/file.py:12", or nothing."""
        return f" in {self.library}" if self.library else ""

    @property
    def other(self) -> Site:
        """The place in the library as a site."""
        file, _, number = self.library.rpartition(":")
        return Site(file, int(number)) if file else UNKNOWN_SITE

    def cause(self) -> str:
        """The most frequent cause of the waits at this line."""
        return self.causes.most_common(1)[0][0]


class Stalls:
    """Collects synchronizations by source line and charges them with the idle time that they caused."""

    KINDS = frozenset({Kind.KERNEL, Kind.COLLECTIVE, Kind.COPY, Kind.SYNCHRONIZE})

    def __init__(self) -> None:
        self.work = Work()
        self.lines: dict[tuple[str, int, str], StalledLine] = {}
        self.pending: list[UnchargedWait] = []
        self.copies: dict[int, Record] = {}  # host thread -> its latest copy

    def see(self, record: Record, work: Work) -> UnchargedWait | None:
        """Take notice of a record; an incident comes back when it is a synchronization, for `charge` or to drop."""
        self.work = work
        if record.kind == Kind.SYNCHRONIZE:
            copy = self.copies.pop(record.lane.thread, None)
            if copy is not None and copy.site[:2] != record.site[:2]:
                copy = None
            return UnchargedWait(record, copy)
        if record.kind == Kind.COPY:
            self.copies[record.lane.thread] = record
        if self.pending:
            device = record.lane.device
            busy_until = work.until(device)
            self._settle(device, 0 if busy_until is None else record.start_ns - busy_until)
        return None

    def charge(self, incident: UnchargedWait, cause: str, size_bytes: int = 0) -> None:
        """Count an incident at its line; the next work of its device decides what it has cost."""
        self._count(incident.line, incident.record, cause, size_bytes)
        self.wait(incident)

    def count(self, copy: Record, cause: str, size_bytes: int = 0) -> StalledLine:
        """Count one more time at a copy's line, without a wait."""
        return self._count(_key(copy, copy), copy, cause, size_bytes)

    def _count(self, key: tuple[str, int, str], record: Record, cause: str, size_bytes: int) -> StalledLine:
        line = self.lines.setdefault(key, StalledLine(record.site, record.lane.device, library=key[2]))
        line.times += 1
        line.causes[cause] += 1
        line.size_bytes += size_bytes
        if line.last_round != self.work.calls:
            line.rounds += 1
            line.last_round = self.work.calls
        return line

    def wait(self, incident: UnchargedWait) -> None:
        """Add a wait to a line that has been counted."""
        self.lines[incident.line].wait_ns += incident.record.duration_ns
        self.pending.append(incident)

    def costs(self, line: StalledLine) -> bool:
        """Whether a line is run again and again and its waits cost time that one would notice."""
        window_ns = self.work.last_ns - (self.work.first_ns or 0)
        return line.rounds >= LOOP_ROUNDS and line.lost_ns > LOST_SHARE * window_ns

    def _settle(self, device: int, idle_ns: int) -> None:
        waiting = []
        for incident in self.pending:
            if incident.record.lane.device not in (device, -1):
                waiting.append(incident)
                continue
            lost_ns = max(0, min(incident.record.duration_ns, idle_ns))
            idle_ns -= lost_ns
            self.lines[incident.line].lost_ns += lost_ns
        self.pending = waiting
