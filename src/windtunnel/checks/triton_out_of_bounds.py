"""The check `triton-out-of-bounds`: a Triton kernel leaves the memory that it was given."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._notes import NotedLine
from windtunnel.checks._triton import KernelMemoryCheck
from windtunnel.trace.finding import Severity


class TritonOutOfBounds(KernelMemoryCheck):
    """A Triton kernel reads or writes outside the memory of its pointer argument.

    ## What it does
    Reports the line of a kernel whose load, store or atomic reaches beyond the allocation that its pointer argument
    points into, with the argument's name and the byte. It does not matter that other memory lies there: an access
    belongs to the argument from which its address was computed. In the emulation, such a load returns the mask's
    `other` or zero, and such a store writes nothing.

    ## Why it is bad
    The GPU notices only where no memory is mapped: "CUDA error: an illegal memory access was encountered" comes up at a
    later line, and after it every CUDA call of the process fails. PyTorch's allocator maps 2 MiB and more at once, so
    mostly the kernel reads or overwrites another tensor, silently.

    ## Example
    ```python
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)  # the last program reads past the end unless BLOCK divides n
    ```

    ## Use instead
    ```python
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    ```
    """

    code: ClassVar = "triton-out-of-bounds"
    severity: ClassVar[Severity] = "error"

    def message(self, line: NotedLine) -> str:
        """Which access, and where it went."""
        return f"{self.place(line)} leaves its memory: {line.word('found')} ({self.launched(line)})"

    def advice(self, line: NotedLine) -> str:
        """What to add."""
        return "mask it (`mask=offsets < n`), and look at the strides and sizes that the kernel is given"
