"""The check `overlapping-operands`: threads of one kernel write what others of them read."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity
from windtunnel.trace.units import times


class OverlappingOperands(NoteCheck):
    """Threads of one kernel write what others of them read.

    ## What it does
    Reports an operator that writes a view of a tensor while it reads another view with some of the same elements, as a
    shift by one column within one matrix does, and an operator that writes a view of which several elements are one
    place of memory, a tensor that stands twice in the list of a `_foreach` operator or of a fused optimizer among them.
    Where both views are dense PyTorch raises an error of its own; others it lets pass. Of operators over lists the
    first call with its sizes is looked at.

    ## Why it is bad
    A GPU's threads come in no order: some read an element before it is written and some afterwards, so the result
    differs from run to run, and no error is raised. The values here are those of the CPU's order, one of many.

    ## Example
    ```python
    history[:, 1:] = history[:, :-1]
    x /= x[:, :1]
    ```

    ## Use instead
    ```python
    history[:, 1:] = history[:, :-1].clone()
    x /= x[:, :1].clone()
    ```
    """

    code: ClassVar = "overlapping-operands"
    severity: ClassVar[Severity] = "error"

    def message(self, line: NotedLine) -> str:
        """Which operator, and what meets."""
        name = f"`{line.word('operator')}`"
        if line.word("what") == "writes":
            what = f"{name} writes elements that lie at one place of memory"
        else:
            what = f"{name} reads elements that other threads of the same kernel write"
        return f"{what}, {times(line.times)}: the order of threads decides, and the result differs from run to run"

    def advice(self, line: NotedLine) -> str:
        """Read a copy."""
        if line.word("what") == "writes":
            return "write to a tensor whose elements have a place each: `.clone()` or `.contiguous()` first"
        return "read a copy: `x[:, 1:] = x[:, :-1].clone()`"
