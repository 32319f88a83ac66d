"""The check `cuda-early-use`: the host uses memory of its own or managed memory that a kernel has not yet written."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._hazards import HazardCheck
from windtunnel.trace.operation import Hazard


class CudaEarlyUse(HazardCheck):
    """The host uses memory that a CUDA kernel may not have written yet.

    ## What it does
    Reports a read or a write, by host code or by Python, of memory of `cudaMallocManaged` (Numba's `managed_array`) or
    page-locked memory (`cudaMallocHost`) that a kernel launched before writes, when nothing has made the host wait for
    that kernel. It is found on Linux, in the launches that are looked at whole, and in pages of which the kernel writes
    all that belongs to the allocation.

    ## Why it is bad
    A launch returns before the kernel has begun. The host finds what was there before, or a part of the result.

    ## Example
    ```cpp
    count<<<blocks, 256>>>(x, n, found);  // int *found, of cudaMallocManaged
    if (*found > 0) compact(x, n);
    ```

    ## Use instead
    ```cpp
    count<<<blocks, 256>>>(x, n, found);
    cudaDeviceSynchronize();
    if (*found > 0) compact(x, n);
    ```
    """

    code: ClassVar = "cuda-early-use"
    supersedes: ClassVar = frozenset({"unsynchronized-access"})

    def message(self, hazard: Hazard) -> str:
        """Which kernel is late."""
        return (
            f"the host uses memory that the kernel launched at {hazard.first} may not have written yet: a "
            "launch returns before the kernel has run"
        )

    def advice(self, hazard: Hazard) -> str:
        """The wait that is missing."""
        return (
            "synchronize before this line (`cudaDeviceSynchronize()`, `cudaStreamSynchronize`, `cuda.synchronize()`, "
            "or an event recorded after the kernel)"
        )
