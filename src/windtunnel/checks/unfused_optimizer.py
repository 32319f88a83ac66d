"""The check `unfused-optimizer`: an optimizer that updates one tensor at a time."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Finding, Severity
from windtunnel.trace.operation import Note
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import plural

MIN_STEPS = 10  # fewer are a test
MIN_TENSORS = 16  # fewer tensors make few kernels, however they are updated


class UnfusedOptimizer(NoteCheck):
    """An optimizer that updates one tensor at a time.

    ## What it does
    Reports steps of an optimizer on a GPU that run a separate kernel, or several, for each parameter (`foreach=False`,
    or an optimizer that has nothing better), in a loop and for sixteen parameters or more. The default of PyTorch
    (`foreach`) is reported where a replay shows that `fused=True` would save 3 % of the step.

    ## Why it is bad
    A model has many small parameters. Updating each with its own kernels takes hundreds of launches where a `foreach`
    or `fused` implementation takes a handful.

    ## Example
    ```python
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)
    ```

    ## Use instead
    ```python
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    ```
    """

    code: ClassVar = "unfused-optimizer"
    costs: ClassVar = True
    fix: ClassVar = "fused optimizer"

    def findings(self, trace: Trace) -> list[Finding]:
        """The lines on which tensors are updated one by one."""
        return self._of("")

    def candidates(self, trace: Trace) -> list[Finding]:
        """The lines with PyTorch's default, which cost something only where `fused` is faster."""
        return self._of("foreach")

    def _of(self, kind: str) -> list[Finding]:
        lines = {key: line for key, line in self.lines.items() if key[2] == kind}
        return [self.finding(line) for line in lines.values()]

    def group(self, note: Note) -> str:
        """Whether all tensors are updated together already."""
        return "foreach" if dict(note.detail).get("foreach") else ""

    def judge(self, line: NotedLine) -> Severity:
        """A loop over many parameters costs launches; a few steps cost nothing."""
        many = line.times >= MIN_STEPS and line.number("parameters") >= MIN_TENSORS
        return self.severity if many else "info"

    def message(self, line: NotedLine) -> str:
        """How many kernels a step takes."""
        name = line.word("optimizer", "the optimizer")
        found = int(line.notes[-1].get("kernels", 0))  # the first step makes the optimizer's state as well
        kernels = f" with {plural(found, 'kernel')}" if found else ""
        way = "" if line.number("foreach") else " one by one"
        return (
            f"{name} updated {plural(line.number('parameters'), 'tensor')}{way}{kernels} in each of "
            f"{plural(line.times, 'step')}"
        )

    def advice(self, line: NotedLine) -> str:
        """Which argument."""
        return "pass `fused=True`" if line.number("foreach") else "leave `foreach` at its default, or pass `fused=True`"
