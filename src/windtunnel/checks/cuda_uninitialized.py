"""The check `cuda-uninitialized`: a CUDA kernel reads memory that nobody wrote."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._cuda import CudaKernelCheck
from windtunnel.checks._notes import NotedLine
from windtunnel.trace.finding import Severity


class CudaUninitialized(CudaKernelCheck):
    """Memory is read that no CUDA kernel has written.

    ## What it does
    Reports the line of a kernel that reads bytes of a tensor which were made without values (`torch.empty`), or of
    `cudaMalloc` (up to 64 MiB), and not written since, or shared memory that no thread of the block has written; and a
    variable of the kernel's own, an array or a number, that some thread uses before it has written it. In a launch that
    is looked at whole the kernel runs again with other values in such variables: one is reported if what the kernel
    writes to global memory depends on it. Also an operator that computes with a part of a result that the kernel has
    left unwritten, or a copy of it to the host, as far as it was looked at whole: its grid is too small, or its loop
    ends too early. Where some bytes of each access were written and others not, it is a remark (`info`): a structure
    with room between its members, or a `float4` of which three are used, is read whole.

    ## Why it is bad
    The memory holds what its last user left there. The result looks right as long as that happens to be zeros, mostly
    in the first run of a test, and changes with the order of allocations.

    ## Example
    ```cpp
    __shared__ float sums[32];
    if (lane == 0) sums[warp] = v;
    __syncthreads();
    v = sums[lane];  // a block of 256 threads has eight warps: 24 of the values were never written
    ```

    ## Use instead
    ```cpp
    __shared__ float sums[32];
    if (lane == 0) sums[warp] = v;
    __syncthreads();
    v = lane < blockDim.x / 32 ? sums[lane] : 0.f;
    ```
    """

    code: ClassVar = "cuda-uninitialized"
    severity: ClassVar[Severity] = "error"
    milder: ClassVar = {"partly-uninitialized-read": "info"}

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return "write the memory first (`torch.zeros`, a loop at the kernel's beginning), or read what was written"
