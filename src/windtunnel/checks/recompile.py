"""The check `recompile`: a compiled program that is compiled again."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity
from windtunnel.trace.operation import Note
from windtunnel.trace.units import plural

MANY = 3  # the first recompilation for another size makes the size dynamic, and is the last


class Recompile(NoteCheck):
    """A compiled program that is compiled again.

    ## What it does
    Reports functions that `torch.compile` compiled more than once, with the guard that failed. It is a warning from the
    third time on.

    ## Why it is bad
    Compiling takes seconds to minutes, during which the GPU waits. After eight compilations, the limit that
    `torch._dynamo.config.recompile_limit` sets, PyTorch gives up and runs the function uncompiled.

    ## Example
    ```python
    @torch.compile(dynamic=False)
    def loss(x):
        return x.square().mean()


    for batch in batches:  # of different sizes
        loss(batch)
    ```

    ## Use instead
    ```python
    @torch.compile(dynamic=True)
    def loss(x):
        return x.square().mean()
    ```
    """

    code: ClassVar = "recompile"
    costs: ClassVar = True

    def group(self, note: Note) -> str:
        """One finding a function."""
        return str(dict(note.detail).get("name", ""))

    def judge(self, line: NotedLine) -> Severity:
        """Once or twice is usual."""
        return self.severity if line.times >= MANY else "info"

    def message(self, line: NotedLine) -> str:
        """How often, and which guard."""
        name, guard = line.word("name", "a function"), line.word("guard", "a guard")
        return f"{name} was compiled again {plural(line.times, 'time')}; the first guard that failed: {guard}"

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return "keep what the guard names the same from call to call, or pass `dynamic=True` where it is a size"
