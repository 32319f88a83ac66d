"""The check `known-error`: an error that ended the program, and whose text does not say what mends it."""

from __future__ import annotations

import re
import textwrap
from typing import ClassVar

from windtunnel.checks._errors import known_advice
from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Finding, Severity
from windtunnel.trace.trace import Trace

MOST_SHOWN = 200
"""Characters of an error's first sentence."""


class KnownError(NoteCheck):
    """The program ended by an error whose usual fix its text does not give.

    ## What it does
    Reports the line of the program at which an exception that nobody caught was raised, if it is one of these:
    DistributedDataParallel's "Expected to mark a variable ready only once" and "Your training graph has changed",
    DTensors of several meshes, or DTensors and tensors, in one operation (`clip_grad_norm_`), and "invalid device
    ordinal".

    ## Why it is bad
    The texts name what the library found, not what the program did. People often try the wrong fix first.

    ## Example
    ```python
    net = DistributedDataParallel(net, device_ids=[rank])
    hidden = checkpoint(body, x, use_reentrant=True)  # body is used twice: "marked ready only once"
    ```

    ## Use instead
    ```python
    hidden = checkpoint(body, x, use_reentrant=False)
    ```
    """

    code: ClassVar = "known-error"
    note: ClassVar = "uncaught-error"
    severity: ClassVar[Severity] = "error"
    precedence: ClassVar = 2

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding a line, for those errors whose fix is known."""
        return [self.finding(line) for line in self.lines.values() if known_advice(line.word("text"))]

    def message(self, line: NotedLine) -> str:
        """Which error."""
        first = re.split(r"[.!] |\n", line.word("text"), maxsplit=1)[0]
        return f"the program ended by {textwrap.shorten(first, MOST_SHOWN)}"

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return known_advice(line.word("text"))
