"""The check `graph-break`: a compiled program that its compiler cannot follow in one piece."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity


class GraphBreak(NoteCheck):
    """A program that `torch.compile` cannot compile in one piece.

    ## What it does
    Reports each line at which `torch.compile` ends a graph and goes on with another one, with Dynamo's own reason.

    ## Why it is bad
    Nothing is fused across the line, what lies between the graphs runs uncompiled, and each graph has its own guards.
    With `fullgraph=True` it is an error.

    ## Example
    ```python
    @torch.compile
    def step(x):
        y = net(x)
        if y.sum().item() > 0:
            y = y / 2
        return y
    ```

    ## Use instead
    ```python
    @torch.compile
    def step(x):
        y = net(x)
        return torch.where(y.sum() > 0, y / 2, y)
    ```
    """

    code: ClassVar = "graph-break"
    severity: ClassVar[Severity] = "info"

    def message(self, line: NotedLine) -> str:
        """Dynamo's reason."""
        return f"torch.compile ended a graph here: {line.word('reason', 'it cannot follow this line').rstrip('.:')}"

    def advice(self, line: NotedLine) -> str:
        """Dynamo's hint."""
        return line.word("hint") or "move what cannot be compiled out of the compiled function"
