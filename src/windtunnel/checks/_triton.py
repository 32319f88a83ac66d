"""What a Triton kernel did wrong with memory: the checks' common half."""

from __future__ import annotations

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity
from windtunnel.trace.operation import Note


class KernelMemoryCheck(NoteCheck):
    """Base of the checks of Triton kernels' memory: one finding a line and pointer argument."""

    def group(self, note: Note) -> str:
        """Different pointer arguments of one line stay apart."""
        return str(dict(note.detail).get("argument", ""))

    def judge(self, line: NotedLine) -> Severity:
        """An error, unless nothing came of it any time."""
        return self.severity if line.number("severe") else "warning"

    def place(self, line: NotedLine) -> str:
        """What did it: the access, the argument, the kernel."""
        return (
            f"the {line.word('access')} through {line.word('argument')!r} in the Triton kernel {line.word('kernel')!r}"
        )

    def launched(self, line: NotedLine) -> str:
        """Where the kernel was launched."""
        return f"launched at {line.word('launched', 'unknown line')}"
