"""The check `fragmentation`: memory that the allocator holds in pieces which nothing fits into."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks import Check
from windtunnel.trace.finding import Finding
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_bytes, format_share

MIN_SHARE = 0.2  # of the device's memory, reserved at the peak and not in use: what another batch size would need


class Fragmentation(Check):
    """Memory that the allocator holds in pieces too small to use.

    ## What it does
    Compares the peak of the memory that the caching allocator took from the driver with the peak of what the program
    used of it, and reports a difference of more than a fifth of the device's memory. Where the history of allocations
    was replayed with other settings, the finding names the one that needed least.

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
    costs: ClassVar = True

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding a device."""
        found = []
        for index, device in enumerate(trace.facts.get("devices", [])):
            if not fragmented(device):
                continue
            total, reserved = device["memory_bytes"], device["peak_reserved_bytes"]
            unused = reserved - (device.get("peak_allocated_bytes") or 0)
            advice, saved_share = _advice(trace.facts.get("replays", []), index)
            found.append(
                Finding(
                    self.code,
                    self.severity,
                    f"the allocator reserved {format_bytes(reserved)} of cuda:{index} at its peak, "
                    f"{format_bytes(unused)} "
                    f"({format_share(unused / total)} of the device) more than the program ever used",
                    advice,
                    size_bytes=unused,
                    device=index,
                    saved_share=saved_share,
                    saved_of="" if saved_share is None else "reserved memory",
                )
            )
        return found


def fragmented(device: Json) -> bool:
    """Whether a device's totals say so; then it is worth replaying its history under other settings."""
    total, reserved = device.get("memory_bytes") or 0, device.get("peak_reserved_bytes") or 0
    return bool(total) and reserved - (device.get("peak_allocated_bytes") or 0) > MIN_SHARE * total


def _advice(replays: list[Json], device: int) -> tuple[str, float | None]:
    """The setting that needed least, and the share of the reserved memory that it saves; None where no replay says.

    `facts["replays"]`, the run's own setting first, is what `session` replayed.
    """
    replayed = [one for one in replays if one["device"] == device]
    if not replayed:
        return (
            "allocate the largest tensors first, or pad inputs to a few sizes; with `--memory-history` the allocations "
            "are replayed to see which of the allocator's settings helps",
            None,
        )
    own, *others = replayed
    fitting = [one for one in others if one["out_of_memory"] <= own["out_of_memory"]]
    best = min(fitting, key=lambda one: int(one["peak_reserved_bytes"]), default=own)
    before, after = int(own["peak_reserved_bytes"]), int(best["peak_reserved_bytes"])
    if after >= before:
        return (
            "no allocator setting helps (each was tried by replay): pad inputs to a few sizes, or allocate the "
            "largest first",
            None,
        )
    return (
        f"set PYTORCH_CUDA_ALLOC_CONF={best['setting']}: replayed with it, the same allocations take "
        f"{format_bytes(after)} instead of {format_bytes(before)}",
        1.0 - after / before,
    )
