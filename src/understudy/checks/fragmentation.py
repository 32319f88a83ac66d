"""The check `fragmentation`: memory that the allocator holds in pieces which nothing fits into."""

from __future__ import annotations

from typing import Any, ClassVar

from understudy.checks import Check
from understudy.trace.finding import Finding
from understudy.trace.trace import Trace
from understudy.trace.units import format_bytes, format_share

MIN_SHARE = 0.2  # of the device's memory, reserved at the peak and not in use: what another batch size would need


class Fragmentation(Check):
    """Memory that the allocator holds in pieces which nothing fits into.

    ## What it does
    Compares the peak of the memory that the caching allocator took from the driver with the peak of what the program
    used of it, and reports a difference of more than a fifth of the device's memory. Where the history of allocations
    was replayed with other settings, it names the one that needed least.

    ## Why it is bad
    The difference is memory that the card has and the program cannot use. It ends in an out-of-memory error that says
    that gigabytes are "reserved but unallocated".

    ## Example
    ```python
    for length in (1000, 1100, 1050, 1210):
        y = net(torch.randn(32, length, 1024, device="cuda"))
    ```

    ## Use instead
    ```
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py
    ```
    """

    code: ClassVar = "fragmentation"

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding a device."""
        found = []
        for index, device in enumerate(trace.facts.get("devices", [])):
            total = device.get("memory_bytes") or 0
            reserved = device.get("peak_reserved_bytes") or 0
            unused = reserved - (device.get("peak_allocated_bytes") or 0)
            if not total or unused <= MIN_SHARE * total:
                continue
            found.append(
                Finding(
                    self.code,
                    self.severity,
                    f"the allocator held {format_bytes(reserved)} of cuda:{index} at its peak, {format_bytes(unused)} "
                    f"({format_share(unused / total)} of the device) more than was ever in use",
                    _advice(trace.facts.get("replays", []), index, reserved),
                    size_bytes=unused,
                    device=index,
                )
            )
        return found


def _advice(replays: list[dict[str, Any]], device: int, reserved: int) -> str:
    """The setting that needed least in a replay: `facts["replays"]` has device, setting and peak_reserved_bytes."""
    better = [one for one in replays if one["device"] == device and one["peak_reserved_bytes"] < reserved]
    if not better:
        return "try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and pad inputs to a few sizes"
    best = min(better, key=lambda one: int(one["peak_reserved_bytes"]))
    return (
        f"set PYTORCH_CUDA_ALLOC_CONF={best['setting']}: the same allocations then take "
        f"{format_bytes(best['peak_reserved_bytes'])}"
    )
