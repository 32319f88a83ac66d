"""The check `cuda-endless-loop`: a loop of a CUDA kernel does not end."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._cuda import CudaKernelCheck
from windtunnel.checks._notes import NotedLine
from windtunnel.trace.finding import Severity


class CudaEndlessLoop(CudaKernelCheck):
    """A loop of a CUDA kernel goes on for ever.

    ## What it does
    Reports the line of a loop in which one warp has spent four billion instructions, or has asked four million times
    for what nobody writes, and ends the kernel there with CUDA's error of a launch that timed out.

    ## Why it is bad
    A GPU has no such bound unless it drives a display: the kernel never ends, the host waits at the next
    synchronization, and the process often cannot even be killed.

    ## Example
    ```cpp
    while (k > 1) k = (k + 1) / 2;  // ends
    while (k > 0) k = (k + 1) / 2;  // does not: 1 stays 1
    ```

    ## Use instead
    A condition that each turn brings nearer, or a `for` loop with a bound.
    """

    code: ClassVar = "cuda-endless-loop"
    severity: ClassVar[Severity] = "error"

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return "make sure that each turn of the loop brings its end nearer, or bound the number of turns"
