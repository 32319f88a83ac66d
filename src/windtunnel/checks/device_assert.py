"""The check `device-assert`: an index or a value that a kernel refuses."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NoteCheck, NotedLine
from windtunnel.trace.finding import Severity
from windtunnel.trace.operation import Note


class DeviceAssert(NoteCheck):
    """A kernel met an index, a target or a probability that is out of range.

    ## What it does
    Reports the line that launched a kernel with an index (indexing, `gather`, `scatter`, `embedding`), a class number
    (`nll_loss`, `cross_entropy`) or a probability (`binary_cross_entropy`, `multinomial`) outside its range.

    ## Why it is bad
    On the CPU such a call raises. A CUDA kernel asserts instead: "CUDA error: device-side assert triggered" comes up
    at some later line, wherever the host next waits, and after it every CUDA call of the process fails.

    ## Example
    ```python
    loss = F.cross_entropy(logits, targets)  # targets from 1 to 10, ten classes
    ...
    print(loss.item())  # the error comes up here
    ```

    ## Use instead
    ```python
    loss = F.cross_entropy(logits, targets - 1)  # classes are numbered from 0
    ```
    """

    code: ClassVar = "device-assert"
    severity: ClassVar[Severity] = "error"
    precedence: ClassVar = 2

    def group(self, note: Note) -> str:
        """Different operators of one line stay apart."""
        return dict(note.detail).get("operator", "")  # type: ignore[return-value]

    def message(self, line: NotedLine) -> str:
        """Which kernel, and what it found."""
        return (
            f"the kernel of {line.word('operator', 'an operator')} asserts ({line.word('found', 'out of range')}); the "
            "error surfaces at a later line, and the process cannot use a GPU afterwards"
        )

    def advice(self, line: NotedLine) -> str:
        """What to look at."""
        return "check the range of the indices here; CUDA_LAUNCH_BLOCKING=1 raises at this very line"
