"""The check `unused-parameters`: parameters that take no part in a step of DistributedDataParallel."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity


class UnusedParameters(NoteCheck):
    """Parameters of a DistributedDataParallel model that did not contribute to the loss.

    ## What it does
    Reports a forward that `DistributedDataParallel` refuses since parameters had no gradient in the step before, with
    their names; and an optimizer's step before the gradients were reduced, where no forward comes after it.

    ## Why it is bad
    The ranks wait for the gradient of every parameter: the step was never finished, and the program ends at the next
    forward. Until then nothing is said, though each rank steps by gradients of its own, and their weights differ.

    ## Example
    ```python
    net = DistributedDataParallel(Net().cuda(), device_ids=[rank])  # its second head has no part in the loss
    net(x)[0].sum().backward()
    ```

    ## Use instead
    ```python
    net = DistributedDataParallel(Net().cuda(), device_ids=[rank], find_unused_parameters=True)
    net(x)[0].sum().backward()
    ```
    """

    code: ClassVar = "unused-parameters"
    severity: ClassVar[Severity] = "error"
    precedence: ClassVar = 2
    supersedes: ClassVar = frozenset({"known-error"})

    def message(self, line: NotedLine) -> str:
        """Which parameters."""
        names = line.word("names")
        said = f"{f': {names}' if names else ''}"
        if line.number("stepped"):
            return (
                f"the optimizer stepped by gradients that were not reduced, since parameters took no part in the "
                f"loss{said}; the ranks' weights differ from here on"
            )
        return f"parameters took no part in the loss of the step before{said}"

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        if line.number("static"):
            return (
                "leave out `static_graph=True` and pass `find_unused_parameters=True`, or return from `forward` only "
                "what the loss uses"
            )
        if line.number("finds"):
            return "return from `forward` only what the loss uses: unused outputs count as used parameters"
        return "let them take part in the loss, remove them, or pass `find_unused_parameters=True`"
