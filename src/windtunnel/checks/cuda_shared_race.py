"""The check `cuda-shared-race`: threads of a CUDA block race for shared memory."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._cuda import CudaKernelCheck
from windtunnel.checks._notes import NotedLine
from windtunnel.trace.finding import Severity


class CudaSharedRace(CudaKernelCheck):
    """Two threads of a block use the same shared memory without a barrier between them.

    ## What it does
    Reports the line of a kernel at which a thread reads or writes shared memory that another thread of its block wrote
    or reads, where no `__syncthreads` (or `__syncwarp`, within a warp) orders the two.

    ## Why it is bad
    Which thread comes first differs from launch to launch and from one model of GPU to the next. The kernel gives right
    results on the machine where it was written, and wrong ones elsewhere or under load.

    ## Example
    ```cpp
    s[threadIdx.x] = x[i];
    out[i] = s[blockDim.x - 1 - threadIdx.x];  // the other thread may not have written it yet
    ```

    ## Use instead
    ```cpp
    s[threadIdx.x] = x[i];
    __syncthreads();
    out[i] = s[blockDim.x - 1 - threadIdx.x];
    ```
    """

    code: ClassVar = "cuda-shared-race"
    severity: ClassVar[Severity] = "error"

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return "put a `__syncthreads()` between the two accesses, where all threads of the block reach it"
