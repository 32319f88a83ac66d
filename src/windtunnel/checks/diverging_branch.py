"""The check `diverging-branch`: ranks that may decide differently, and a collective behind the decision."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.operation import written


class DivergingBranch(NoteCheck):
    """A branch that each rank takes by a value of its own, with a collective behind it.

    ## What it does
    With `--cluster` there are no data, and a loss is taken for the same number on all ranks. Reports an `if` or a
    `while` of the program that hangs on such a number, or on where tokens go in a mixture of experts, if no
    collective has made it the same everywhere: and the first collective that a rank calls, or the first parameters
    that it uses, only where it decides one way.

    ## Why it is bad
    With data, the ranks' numbers differ. Those that decide otherwise never call the collective, or call another one,
    and the job hangs until its timeout.

    ## Example
    ```python
    dist.reduce(loss, 0)  # the others keep a part of the sum
    if loss.item() < best:
        state = net.state_dict()  # FSDP gathers here
    ```

    ## Use instead
    ```python
    dist.all_reduce(loss)
    if loss.item() < best:
        state = net.state_dict()
    ```
    """

    code: ClassVar = "diverging-branch"

    def message(self, line: NotedLine) -> str:
        """What hangs on what."""
        place, call = written(line.word("file"), line.number("line")), line.word("call")
        read = f"each rank decides by values of its own, read at line {line.number('read')} and assumed alike; "
        if not call:
            return (
                f"{read}parameters used at {place} have gradients only where it falls one way, and ranks without "
                "them reduce other sizes, or keep the others waiting"
            )
        return (
            f"{read}{call} at {place} is called only where it falls one way, and ranks that decide otherwise leave the "
            "others waiting"
        )

    def advice(self, line: NotedLine) -> str:
        """Make it the same, or look."""
        if not line.word("call"):
            return (
                "use all parameters on every rank, those of an expert without tokens with none, or let "
                "`set_reduce_scatter_unused_params` (FSDP2) or `find_unused_parameters` (DDP) reduce zeros for them"
            )
        return (
            "let all ranks have one number (`dist.all_reduce`, `dist.broadcast`) before they decide by it, or make the "
            "call on every rank"
        )
