"""The check `stale-read`: the host reads what a copy has not yet brought."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._hazards import HazardCheck
from windtunnel.trace.operation import Hazard


class StaleRead(HazardCheck):
    """The host reads memory that a copy has not filled yet.

    ## What it does
    Reports a read, on the host, of memory that a `non_blocking=True` copy from a device fills, when nothing has made
    the host wait for that copy. `.to("cpu", non_blocking=True)` counts: PyTorch gives its result pinned memory, so the
    copy is late. So does `cudaMemcpyAsync` of CUDA C++ into page-locked memory, on Linux, for whole pages.

    ## Why it is bad
    The call returns before the bytes arrive. The host reads what was in the buffer before: zeros, or the last result.

    ## Example
    ```python
    y = x.to("cpu", non_blocking=True)
    total = y.sum()
    ```

    ## Use instead
    ```python
    y = x.to("cpu", non_blocking=True)
    torch.cuda.current_stream().synchronize()
    total = y.sum()
    ```
    """

    code: ClassVar = "stale-read"
    supersedes: ClassVar = frozenset({"unsynchronized-access"})

    def message(self, hazard: Hazard) -> str:
        """Which copy is late."""
        return (
            f"the host reads memory that the copy at {hazard.first} may not have filled yet: an asynchronous copy "
            "returns before the bytes arrive"
        )

    def advice(self, hazard: Hazard) -> str:
        """The wait that is missing."""
        return (
            "synchronize before this line (`torch.cuda.current_stream().synchronize()`, `cudaStreamSynchronize`, or an "
            "event recorded after the copy), or drop `non_blocking=True`"
        )
