"""The check `near-full-memory`: a peak that leaves next to nothing of a device's memory."""

from __future__ import annotations

from typing import ClassVar

from windtunnel.checks import Check
from windtunnel.checks._memory import holders, holders_words, owners
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import UNKNOWN_SITE
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_bytes, format_share

NEAR = 0.92  # of the memory: the rest is less than what another driver, library or a longer input takes


class NearFullMemory(Check):
    """A peak that leaves almost none of a device's memory free.

    ## What it does
    Compares the peak of the allocated memory, together with the CUDA context, with the device's memory, and reports
    more than 92 %.

    ## Why it is bad
    A longer input, a newer driver or another process is enough for an out-of-memory error hours into the run. Near the
    limit the allocator also gives memory back and takes it again, which makes the device wait.

    ## Example
    ```python
    loader = DataLoader(data, batch_size=512)  # 15.2 of 15.8 GiB
    ```

    ## Use instead
    ```python
    loader = DataLoader(data, batch_size=448)
    ```
    """

    code: ClassVar = "near-full-memory"
    costs: ClassVar = True

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding a device."""
        found = []
        failed = {dict(note.detail).get("device") for note in trace.notes if note.code == "out-of-memory"}
        for index, device in enumerate(trace.facts.get("devices", [])):
            total = device.get("memory_bytes") or 0
            used = (device.get("peak_allocated_bytes") or 0) + (device.get("context_bytes") or 0)
            if not NEAR * total < used <= total or index in failed:  # what does not fit is an error of its own
                continue
            held = owners(trace, index) if len(trace.memory) else []
            found.append(
                Finding(
                    self.code,
                    self.severity,
                    f"cuda:{index} held {format_bytes(used)} of {format_bytes(total)} at its peak "
                    f"({format_share(used / total)})" + (holders_words(holders(trace, index)) if held else ""),
                    "leave a tenth free: a smaller batch, `torch.autocast`, activation checkpointing",
                    next((owner.site for owner in held if owner.site.file), UNKNOWN_SITE),
                    size_bytes=used,
                    device=index,
                )
            )
        return found
