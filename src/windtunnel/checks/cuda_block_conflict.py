"""The check `cuda-block-conflict`: blocks of a CUDA kernel write the same memory."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._cuda import CudaKernelCheck
from windtunnel.checks._notes import NotedLine
from windtunnel.trace.finding import Severity

SAME_VALUE = "same-value"
"""All wrote what was there already."""


class CudaBlockConflict(CudaKernelCheck):
    """Blocks of one launch use the same memory, and one of them writes it.

    ## What it does
    Reports the line of a kernel at which a block writes or reads global memory that another block of the same launch
    writes, other than by atomics; also a read of a sum of floating-point numbers to which other blocks still add by
    atomics, and an atomic addition to what another block has set. What one block hands on to another is no conflict:
    by a fence (`__threadfence()`) and an atomic or volatile access behind it that the other block asks, or at a barrier
    of the whole grid. A load through the cache of read-only data (`__ldg`, or a `const __restrict__` pointer) of what
    the launch writes counts, too. Where all blocks wrote the same value, as a flag that several set, it is a remark
    (`info`), unless all of them write all that one does: an index lacks `blockIdx`.

    ## Why it is bad
    Blocks run in any order, several at once: the last one to write wins, and which one that is changes from run to run.
    A sum that blocks add up without atomics loses some of its parts.

    ## Example
    ```cpp
    if (threadIdx.x == 0) *total += s[0];  // every block
    ```

    ## Use instead
    ```cpp
    if (threadIdx.x == 0) atomicAdd(total, s[0]);
    ```
    """

    code: ClassVar = "cuda-block-conflict"
    severity: ClassVar[Severity] = "error"
    milder: ClassVar = {SAME_VALUE: "info"}

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        if line.word("kind") == SAME_VALUE:
            return "nothing, if blocks can only write this one value"
        if line.word("kind") == "read-only-cache":
            return "read what the launch writes by a plain load, from a pointer without `__restrict__`"
        return "use an atomic function, or give each block a place of its own and add these up in a second kernel"
