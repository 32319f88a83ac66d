"""The check `triton-uninitialized`: a Triton kernel reads memory that nobody wrote."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NotedLine
from windtunnel.checks._triton import KernelMemoryCheck
from windtunnel.trace.finding import Severity


class TritonUninitialized(KernelMemoryCheck):
    """A Triton kernel reads memory that nobody wrote.

    ## What it does
    Reports the line of a kernel whose load, or atomic that reads, meets bytes of `torch.empty` and its like that
    neither a kernel nor an operator has written before. What Triton kernels wrote is known to the byte, and so is what
    operators of PyTorch's write through a view; one that chooses places by values (`index_put_`) counts as having
    written its whole tensor, and one with several results (`torch._foreach_copy_`) as having written all of them.

    ## Why it is bad
    Such bytes hold whatever was there before: zeros on a fresh GPU, so that a test passes, and another tensor's numbers
    later in a run.

    ## Example
    ```python
    total = torch.empty(1, device="cuda")
    accumulate[grid](x, total, n, BLOCK=1024)  # adds to it with tl.atomic_add
    ```

    ## Use instead
    ```python
    total = torch.zeros(1, device="cuda")
    accumulate[grid](x, total, n, BLOCK=1024)
    ```
    """

    code: ClassVar = "triton-uninitialized"
    severity: ClassVar[Severity] = "error"

    def message(self, line: NotedLine) -> str:
        """Which access, and of which bytes."""
        return f"{self.place(line)} reads memory that nobody wrote: {line.word('found')} ({self.launched(line)})"

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return "make the tensor with `torch.zeros`, or let the kernel that fills it write all that is read"
