"""Accesses without order: hazards of one code, grouped into incidents.

Two hazards are one incident when the same kind of pair (two streams, or a stream and the host) meets at a common line:
one wait at that line mends both. The first that was met speaks for the incident.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from windtunnel.checks import Check
from windtunnel.trace.finding import Finding, Severity
from windtunnel.trace.operation import Hazard, Kind, Lane
from windtunnel.trace.trace import Record, Trace


@dataclass
class HazardGroup:
    """Hazards that one change would mend."""

    hazard: Hazard
    times: int = 0
    size_bytes: int = 0


class HazardCheck(Check):
    """Base of the checks that read hazards: subclasses say `message` and `advice` of the first hazard."""

    severity: ClassVar[Severity] = "error"
    kinds: ClassVar = frozenset({Kind.HAZARD})

    def __init__(self) -> None:
        self.incidents: list[HazardGroup] = []
        self.by_line: dict[tuple[object, ...], HazardGroup] = {}

    def see(self, record: Record, trace: Trace) -> None:
        """Take up hazards of this check's code."""
        hazard = trace.hazards[record.value]
        if hazard.code != self.code:
            return
        sides = hazard.first_lane.device < 0, hazard.second_lane.device < 0
        first = (*sides, "first", hazard.first.file, hazard.first.line)
        second = (*sides, "second", hazard.second.file, hazard.second.line)
        incident = self.by_line.get(second) or self.by_line.get(first)
        if incident is None:
            incident = HazardGroup(hazard)
            self.incidents.append(incident)
        self.by_line.setdefault(first, incident)
        self.by_line.setdefault(second, incident)
        incident.times += 1
        incident.size_bytes = max(incident.size_bytes, hazard.size_bytes)

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding an incident, at the later of its two lines; a remark where a library made the stream."""
        found = []
        for hazard, times, size_bytes in ((one.hazard, one.times, one.size_bytes) for one in self.incidents):
            library = _library(hazard, trace)
            owner = f"; {library} made that stream, so the order is the library's to keep" if library else ""
            found.append(
                Finding(
                    self.code,
                    "info" if library else self.judge(hazard),
                    self.message(hazard) + owner,
                    self.advice(hazard),
                    hazard.second,
                    hazard.first,
                    hazard.allocated,
                    times=times,
                    size_bytes=size_bytes,
                    device=max(hazard.second_lane.device, hazard.first_lane.device),
                )
            )
        return found

    def judge(self, hazard: Hazard) -> Severity:
        """How grave it is."""
        return self.severity

    def message(self, hazard: Hazard) -> str:
        """What happened, and why it is wrong."""
        raise NotImplementedError

    def advice(self, hazard: Hazard) -> str:
        """What to change."""
        raise NotImplementedError


def _library(hazard: Hazard, trace: Trace) -> str:
    """The line of a library that made one of the two streams for itself; "" when the program made them."""
    made_by: dict[str, str] = trace.facts.get("library_streams", {})
    names = (f"{lane.device}:{lane.stream}" for lane in (hazard.first_lane, hazard.second_lane))
    return next((made_by[name] for name in names if name in made_by), "")


def actor(lane: Lane) -> str:
    """Who made an access: "the host", "the default stream of cuda:0", "stream 3 of cuda:0"."""
    if lane.device < 0:
        return "the host"
    stream = "the default stream" if lane.stream == 0 else f"stream {lane.stream}"
    return f"{stream} of cuda:{lane.device}"
