"""The check `cuda-divergent-barrier`: threads of a CUDA block wait at different barriers."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._cuda import CudaKernelCheck
from windtunnel.checks._notes import NotedLine
from windtunnel.trace.finding import Severity

RETURNED = "missed-barrier"


class CudaDivergentBarrier(CudaKernelCheck):
    """Not all threads of a block, or of a warp, reach the same barrier.

    ## What it does
    Reports the barrier (`__syncthreads`, `__syncwarp`, a shuffle or a vote with a mask) at which some threads wait
    while others, which should, wait elsewhere or have ended. Threads that have returned before `__syncthreads` are a
    warning: GPUs since Volta do not wait for them.

    ## Why it is bad
    CUDA leaves undefined what happens: some GPUs hang, others go on as if the missing threads had arrived, and the
    values that the barrier should protect are read too early. Code in which threads return early hangs on GPUs before
    Volta and on AMD's, and breaks as soon as the missing threads have something to do behind the barrier.

    ## Example
    ```cpp
    if (threadIdx.x < n) {
      s[threadIdx.x] = x[threadIdx.x];
      __syncthreads();  // the threads from n on do not come here
    }
    ```

    ## Use instead
    ```cpp
    if (threadIdx.x < n) s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    ```
    """

    code: ClassVar = "cuda-divergent-barrier"
    severity: ClassVar[Severity] = "error"
    milder: ClassVar = {RETURNED: "warning"}  # GPUs of today go on

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        if line.word("kind") == RETURNED:
            return "keep all threads until the barrier: put a condition around their work, not a return before it"
        return "move the barrier out of the branch, so that all threads reach it"
