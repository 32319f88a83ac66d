"""The check `cuda-shared-race`: threads of a CUDA block race for shared memory."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._cuda import CudaKernelCheck
from windtunnel.checks._notes import NotedLine
from windtunnel.trace.finding import Severity

COPY, LOCKSTEP = "copy-under-way", "lockstep"


class CudaSharedRace(CudaKernelCheck):
    """Two threads of a block use the same memory without a barrier between them.

    ## What it does
    Reports the line of a kernel at which a thread reads or writes shared memory that another thread of its block wrote
    or reads, where no `__syncthreads` (or `__syncwarp`, within a warp) orders the two. Atomics beside other accesses
    count, and so do asynchronous copies (`cp.async`, `__pipeline_memcpy_async`) that are read before their thread has
    waited for them. Lanes of a warp that exchange values by `volatile` memory alone are a warning. So are threads of a
    block that race for global memory, which is looked at where a kernel reads and writes one allocation of at most
    16 MB: some kernels read an element too many and do not use it.

    ## Why it is bad
    Which thread comes first differs from launch to launch and from one model of GPU to the next. The kernel gives right
    results on the machine where it was written, and wrong ones elsewhere or under load. Since Volta that holds for the
    lanes of a warp, too: shuffles and votes order nothing in memory, and `volatile` does not either.

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
    milder: ClassVar = dict.fromkeys((LOCKSTEP, "global-race", "global-warp-race"), "warning")
    """Code from before Volta relies on lockstep, and it may be that a value in global memory is not used."""

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        kind = line.word("kind")
        if kind == COPY:
            return "let each thread wait for its copies (`__pipeline_wait_prior`), with a `__syncthreads()` behind that"
        if kind in (LOCKSTEP, "warp-race", "global-warp-race"):
            return "put a `__syncwarp()` between the two accesses, or exchange the values by shuffles"
        return "put a `__syncthreads()` between the two accesses, where all threads of the block reach it"
