"""The check `early-overwrite`: the host changes what a copy has not yet taken."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._hazards import HazardCheck
from windtunnel.trace.operation import Hazard


class EarlyOverwrite(HazardCheck):
    """The host overwrites memory that a copy has not read yet.

    ## What it does
    Reports a write, on the host, to pinned memory from which a `non_blocking=True` copy to a device was started, when
    nothing has made the host wait for that copy; and a write to pinned memory that such a copy has yet to fill. So it
    does for `cudaMemcpyAsync` of CUDA C++, on Linux, for whole pages.

    ## Why it is bad
    The device gets a mixture of the old bytes and the new ones. A buffer that a loop reuses for the next batch corrupts
    the previous one.

    ## Example
    ```python
    buffer = torch.empty(1024, pin_memory=True)
    for batch in batches:
        buffer.copy_(batch)
        x = buffer.to("cuda", non_blocking=True)
    ```

    ## Use instead
    ```python
    buffers = [torch.empty(1024, pin_memory=True) for _ in range(2)]
    copied = [torch.cuda.Event() for _ in buffers]
    for number, batch in enumerate(batches):
        copied[number % 2].synchronize()
        buffers[number % 2].copy_(batch)
        x = buffers[number % 2].to("cuda", non_blocking=True)
        copied[number % 2].record()
    ```
    """

    code: ClassVar = "early-overwrite"
    supersedes: ClassVar = frozenset({"unsynchronized-access"})

    def message(self, hazard: Hazard) -> str:
        """Which copy is under way."""
        return (
            f"the host writes to memory that the copy at {hazard.first} may still be using: an asynchronous copy "
            "returns before the bytes have gone"
        )

    def advice(self, hazard: Hazard) -> str:
        """Wait, or take turns between two buffers."""
        return "take turns between two buffers, or wait for an event recorded after the copy before writing"
