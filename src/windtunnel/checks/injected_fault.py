"""The check `injected-fault`: something that went wrong on purpose."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity
from windtunnel.trace.operation import Note


class InjectedFault(NoteCheck):
    """A fault that the run was asked to inject.

    ## What it does
    Says where each fault of `--fault` happened. It is a remark: nothing is wrong with the program.

    ## Why it is bad
    It is not: what follows from it (an error, a finding, wrong values) is what the fault was injected to show.

    ## Example
    ```console
    windtunnel run --fault nan:step=3,operation=mm train.py
    ```

    ## Use instead
    ```console
    windtunnel run train.py
    ```
    """

    code: ClassVar = "injected-fault"
    severity: ClassVar[Severity] = "info"

    def group(self, note: Note) -> str:
        """Different faults of one line stay apart."""
        return str(note.detail)

    def message(self, line: NotedLine) -> str:
        """Which fault."""
        return f"the fault {line.word('fault')} was injected here, as requested"

    def advice(self, line: NotedLine) -> str:
        """What to look at."""
        return "check that the program recovers, or ends, as it should"
