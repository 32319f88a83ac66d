"""Notes recorded by the seam, grouped by source line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from windtunnel.checks import Check
from windtunnel.trace.finding import Finding, Fix, Severity
from windtunnel.trace.operation import Kind, Note, Site
from windtunnel.trace.trace import Record, Trace


@dataclass
class NotedLine:
    """The notes on one source line, each with its numbers."""

    site: Site
    notes: list[dict[str, str | int]] = field(default_factory=list)
    times: int = 0

    def number(self, key: str) -> int:
        """The largest number of that name; 0 where there is none."""
        return max((int(note.get(key, 0)) for note in self.notes), default=0)

    def word(self, key: str, default: str = "") -> str:
        """The first word of that name."""
        return next((str(note[key]) for note in self.notes if key in note), default)


class NoteCheck(Check):
    """Base of the checks that read notes, of their own code unless `note` names another: one finding a line."""

    fix: ClassVar[Fix] = ""
    note: ClassVar[str] = ""
    kinds: ClassVar = frozenset({Kind.NOTE})

    def __init__(self) -> None:
        self.lines: dict[tuple[str, int, str], NotedLine] = {}

    def see(self, record: Record, trace: Trace) -> None:
        """Take up notes of this check's code."""
        note = trace.notes[record.value]
        if note.code != (self.note or self.code):
            return
        line = self.lines.setdefault((note.site.file, note.site.line, self.group(note)), NotedLine(note.site))
        line.times += 1
        detail = dict(note.detail)
        if detail not in line.notes:
            line.notes.append(detail)

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding a line."""
        return [self.finding(line) for line in self.lines.values()]

    def finding(self, line: NotedLine) -> Finding:
        """The finding of one line."""
        return Finding(
            self.code,
            self.judge(line),
            self.message(line),
            self.advice(line),
            line.site,
            times=line.times,
            size_bytes=line.number("size_bytes"),
            device=line.number("device") if any("device" in note for note in line.notes) else -1,
            fix=self.fix,
        )

    def group(self, note: Note) -> str:
        """What keeps notes of one line apart; nothing by default."""
        return ""

    def judge(self, line: NotedLine) -> Severity:
        """How bad it is."""
        return self.severity

    def message(self, line: NotedLine) -> str:
        """What happened, and why it is wrong."""
        raise NotImplementedError

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        raise NotImplementedError
