"""The check `cuda-misaligned`: a CUDA kernel uses an address that is not aligned."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._cuda import CudaKernelCheck
from windtunnel.checks._notes import NotedLine
from windtunnel.trace.finding import Severity


class CudaMisaligned(CudaKernelCheck):
    """A CUDA kernel reads or writes a vector at an address that is not a multiple of its size.

    ## What it does
    Reports the line of a kernel whose access of 2, 4, 8 or 16 bytes lies at an address that is not a multiple of as
    many, such as a `float4` in a view that begins at an odd element.

    ## Why it is bad
    The GPU does not carry it out: "CUDA error: misaligned address" comes up at a later line, and after it every CUDA
    call of the process fails.

    ## Example
    ```cpp
    float4 v = reinterpret_cast<const float4 *>(x + 1)[i];
    ```

    ## Use instead
    ```cpp
    float4 v = make_float4(x[4 * i + 1], x[4 * i + 2], x[4 * i + 3], x[4 * i + 4]);
    ```
    """

    code: ClassVar = "cuda-misaligned"
    severity: ClassVar[Severity] = "error"

    def advice(self, line: NotedLine) -> str:
        """What to change."""
        return "read single elements, or look at `x.storage_offset()` and the strides and launch another kernel"
