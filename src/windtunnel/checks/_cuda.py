"""What a CUDA kernel of the program's own did wrong: the checks' common half."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity
from windtunnel.trace.operation import Note


class CudaKernelCheck(NoteCheck):
    """Base of the checks of CUDA kernels: one finding a line of the `.cu` and pointer argument."""

    milder: ClassVar[Mapping[str, Severity]] = {}
    """Kinds that weigh less where nothing else was seen."""

    def group(self, note: Note) -> str:
        """Different kernels and arguments of one line stay apart."""
        detail = dict(note.detail)
        return f"{detail.get('kernel', '')} {detail.get('argument', '')}"

    def judge(self, line: NotedLine) -> Severity:
        """Less than the check's where each note is of a milder kind."""
        found = {self.milder.get(str(note.get("kind")), self.severity) for note in line.notes}
        return found.pop() if len(found) == 1 else self.severity

    def place(self, line: NotedLine) -> str:
        """Which kernel, and where it was launched."""
        return f"the CUDA kernel {line.word('kernel')!r}, launched at {line.word('launched', 'unknown line')}"

    def message(self, line: NotedLine) -> str:
        """What the first thread did that was seen to do it."""
        found = line.word("found")
        return f"{self.place(line)}: {found[:1].lower()}{found[1:]}"
