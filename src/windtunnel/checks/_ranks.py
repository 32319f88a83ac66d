"""What the checks share that read what ranks called of one another."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.ranks import words
from windtunnel.trace.finding import Finding, Severity
from windtunnel.trace.operation import Note, Site
from windtunnel.trace.trace import Trace


class PairCheck(NoteCheck):
    """Base of the checks of two ranks: a finding for each note, with the other rank's line."""

    def group(self, note: Note) -> str:
        """Each incident is a finding of its own."""
        return str(note.detail)

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding an incident."""
        return [
            finding._replace(other=Site(line.word("other_file"), line.number("other_line")), times=1)
            for finding, line in zip(super().findings(trace), self.lines.values(), strict=True)
        ]


class RankCheck(PairCheck):
    """Base of the checks of what goes wrong between ranks."""

    severity: ClassVar[Severity] = "error"
    precedence: ClassVar = 3

    def message(self, line: NotedLine) -> str:
        """What happened, with the lines of all ranks."""
        return words.message(self.code, line.notes[0])
