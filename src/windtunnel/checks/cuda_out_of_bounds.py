"""The check `cuda-out-of-bounds`: a CUDA kernel leaves the memory that it was given."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._cuda import CudaKernelCheck
from windtunnel.checks._notes import NotedLine
from windtunnel.trace.finding import Severity


class CudaOutOfBounds(CudaKernelCheck):
    """A CUDA kernel reads or writes outside an allocation.

    ## What it does
    Reports the line of a kernel whose access leaves the allocation that its pointer belongs to: behind a tensor's end,
    before its beginning, in memory that was freed or is another GPU's, or outside the block's shared memory or the
    thread's local memory; with the thread, the block, the argument and the distance. Another allocation beside it
    counts as outside, unless it is of another argument that the pointer is chosen from, or the pointer comes from
    memory or points to where one allocation ends and the next begins.

    ## Why it is bad
    The GPU notices only where no memory is mapped: "CUDA error: an illegal memory access was encountered" comes up at a
    later line, and after it every CUDA call of the process fails. PyTorch's allocator maps 2 MiB and more at once, so
    mostly the kernel reads or overwrites another tensor, silently.

    ## Example
    ```cpp
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = a * x[i];  // the last block goes past the end unless blockDim.x divides n
    ```

    ## Use instead
    ```cpp
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a * x[i];
    ```
    """

    code: ClassVar = "cuda-out-of-bounds"
    severity: ClassVar[Severity] = "error"

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        if line.word("kind") == "other-device":
            return "make the tensor's device the current one before the launch, and take that device's current stream"
        return (
            "compare the index with the size (`if (i < n)`), and look at the sizes and strides that the kernel is given"
        )
