"""The check `unfused-optimizer`: an optimizer that updates one tensor at a time."""

from __future__ import annotations

from typing import ClassVar

from understudy.checks._notes import Line, NoteCheck
from understudy.trace.finding import Severity
from understudy.trace.units import plural

MIN_STEPS = 10  # fewer are a test
MIN_TENSORS = 16  # fewer tensors make few kernels, however they are updated


class UnfusedOptimizer(NoteCheck):
    """An optimizer that updates one tensor at a time.

    ## What it does
    Reports steps of an optimizer on a GPU that run a separate kernel, or several, for each parameter (`foreach=False`,
    or an optimizer that has nothing better), in a loop and for sixteen parameters or more.

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
    fix: ClassVar = "fused optimizer"

    def judge(self, line: Line) -> Severity:
        """A loop over many parameters costs launches; a few steps cost nothing."""
        many = line.times >= MIN_STEPS and line.number("parameters") >= MIN_TENSORS
        return self.severity if many else "info"

    def message(self, line: Line) -> str:
        """How many kernels a step takes."""
        name = line.word("optimizer", "the optimizer")
        kernels = f" with {plural(line.number('kernels'), 'kernel')}" if line.number("kernels") else ""
        return (
            f"{name} updated {plural(line.number('parameters'), 'tensor')} one by one{kernels} in each of "
            f"{plural(line.times, 'step')}"
        )

    def advice(self, line: Line) -> str:
        """Which argument."""
        return "leave `foreach` at its default, or pass `fused=True`"
