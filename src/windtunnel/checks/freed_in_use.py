"""The check `freed-in-use`: memory handed out again while another stream still uses it."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks._hazards import HazardCheck, actor
from windtunnel.trace.operation import Hazard


class FreedInUse(HazardCheck):
    """Memory handed out again while another stream still uses it.

    ## What it does
    Reports a tensor that was freed on the stream it was created on while work on another stream, not ordered before,
    may still be using it, and whose memory was then given to a new tensor.

    ## Why it is bad
    The caching allocator orders memory by the stream on which it was allocated and does not know about other streams.
    The new owner writes while the old reader still reads: the values are sometimes wrong.

    ## Example
    ```python
    x = torch.randn(1024, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x.sum()
    del x
    z = torch.zeros(1024, device="cuda")
    ```

    ## Use instead
    ```python
    x = torch.randn(1024, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x.sum()
    x.record_stream(side)
    del x
    z = torch.zeros(1024, device="cuda")
    ```
    """

    code: ClassVar = "freed-in-use"
    supersedes: ClassVar = frozenset({"unsynchronized-access"})

    def message(self, hazard: Hazard) -> str:
        """Who still used the memory, and who got it."""
        verb = "writes to" if hazard.first_access == "write" else "reads"
        born = f" (allocated at {hazard.allocated})" if hazard.allocated.file else ""
        return (
            f"{actor(hazard.second_lane)} uses memory{born} that was freed while {actor(hazard.first_lane)} may still "
            f"be at work on it: it {verb} it at {hazard.first}"
        )

    def advice(self, hazard: Hazard) -> str:
        """Where `record_stream` belongs."""
        return (
            f"call `tensor.record_stream(stream)` after its use at {hazard.first}, or let the tensor's own stream wait "
            "for the other before the tensor is freed"
        )
