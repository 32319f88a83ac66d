"""The check `cuda-absent-lane`: a CUDA kernel uses what a shuffle takes from a lane that is not there."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._cuda import CudaKernelCheck
from windtunnel.checks._notes import NotedLine
from windtunnel.trace.finding import Severity


class CudaAbsentLane(CudaKernelCheck):
    """What a kernel writes depends on a shuffle from a lane that is not there.

    ## What it does
    Reports the shuffle by which a lane takes a value from one that its mask does not name, that has returned, that the
    block does not have, or that is at another instruction. In a launch that is looked at whole the kernel runs again
    with other values in the place of these: the shuffle is reported if what the kernel writes to global memory depends
    on them. A sum over half a warp, where only lane 0 uses its result, is fine.

    ## Why it is bad
    CUDA leaves the value undefined. Most GPUs give what the other lane's register last held, often zero: a sum over a
    block of 48 threads then looks right until the kernel is compiled anew, and is wrong for a maximum of negative
    numbers.

    ## Example
    ```cpp
    // a block of 48 threads: the second warp has lanes 0 to 15
    for (int n = 16; n > 0; n /= 2) v += __shfl_down_sync(0xffffffff, v, n);
    ```

    ## Use instead
    ```cpp
    __shared__ float s[64];  // or a block of whole warps, whose last lanes bring zeros
    s[threadIdx.x] = v;
    if (threadIdx.x < 16) s[48 + threadIdx.x] = 0;
    ```
    """

    code: ClassVar = "cuda-absent-lane"
    severity: ClassVar[Severity] = "error"

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return "launch whole warps whose last lanes bring zeros, or shuffle only among lanes that the mask names"
