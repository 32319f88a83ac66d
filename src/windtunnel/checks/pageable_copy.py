"""The check `pageable-copy`: copies between a device and memory that is not pinned."""

from __future__ import annotations

import re
from typing import ClassVar

from windtunnel.checks import Check
from windtunnel.checks._copies import SMALL_BYTES, detail, non_blocking, pageable, to_device
from windtunnel.checks._stalls import LOOP_ROUNDS, StalledLine, Stalls
from windtunnel.checks._work import Work
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Kind
from windtunnel.trace.trace import Record, Trace
from windtunnel.trace.units import format_bytes, format_ns, plural

PIN = "`DataLoader(..., pin_memory=True)` or `.pin_memory()`"
CONVERTED = re.compile(r"\w\.(float|double|half|bfloat16|int|long|to)\([^()]*\)\.(to|cuda)\(")
"""What a line converts right before the copy is new memory, even if a DataLoader pinned the source."""
PIN_NEW = (
    "put `.pin_memory()` before this copy and pass `non_blocking=True`: what the line converts is new memory, which a "
    "loader's `pin_memory=True` does not reach"
)
NUMBER_BYTES = 16  # what moves no more at a time is a number rather than data


class PageableCopy(Check):
    """Copies between a device and memory that is not pinned.

    ## What it does
    Groups copies from pageable host memory to a device by source line, and copies with `non_blocking=True` whose host
    side is pageable, in either direction. A line outside of a loop (a model that is moved once) is not reported, nor
    is one that moves at most 64 KiB at a time and costs no noticeable time; with `non_blocking=True`, which has no
    effect there, both are `info`.

    ## Why it is bad
    The hardware can only copy from pinned (page-locked) memory by itself. From pageable memory the driver first copies
    the bytes into a pinned buffer of its own: that is slower, the host waits, and `non_blocking=True` gains nothing.

    ## Example
    ```python
    loader = DataLoader(data, batch_size=128)
    for x, y in loader:
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
    ```

    ## Use instead
    ```python
    loader = DataLoader(data, batch_size=128, pin_memory=True)
    for x, y in loader:
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
    ```
    """

    code: ClassVar = "pageable-copy"
    costs: ClassVar = True
    kinds: ClassVar = Stalls.KINDS
    parts: ClassVar = {"work": Work}
    work: Work

    def __init__(self) -> None:
        self.stalls = Stalls()
        self.asked: set[tuple[str, int]] = set()  # lines that said non_blocking=True

    def see(self, record: Record, trace: Trace) -> None:
        """Count copies by line."""
        incident = self.stalls.see(record, self.work)
        if incident is not None:
            copy = incident.copy
            if copy is not None and pageable(copy) and not detail(copy, "module"):
                if non_blocking(copy):
                    self.stalls.wait(incident)
                elif to_device(copy):
                    self.stalls.charge(incident, "blocking", copy.value)
        elif record.kind == Kind.COPY and pageable(record) and non_blocking(record) and not detail(record, "module"):
            line = self.stalls.count(record, "to the device" if to_device(record) else "to the host", record.value)
            self.asked.add((line.site.file, line.site.line))

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding a line."""
        found = []
        for key, line in self.stalls.lines.items():
            repeated = line.rounds >= LOOP_ROUNDS
            large = line.size_bytes > SMALL_BYTES * line.times
            if key[:2] in self.asked:
                found.append(self._asked_for(line, repeated and large, trace))
            elif repeated and (large or self.stalls.costs(line)):
                found.append(self._blocking(line, self.stalls.costs(line), trace))
        return found

    def _asked_for(self, line: StalledLine, costs: bool, trace: Trace) -> Finding:
        moved = f"{plural(line.times, 'copy')} ({format_bytes(line.size_bytes)}){line.where}"
        if line.cause() == "to the host":
            message = (
                f"{moved} with `non_blocking=True` went into pageable memory: the host usually waits all the same, but "
                "CUDA does not guarantee it"
            )
            advice = "copy into pinned memory (`.to('cpu', non_blocking=True)` gives it) and synchronize before reading"
        else:
            message = (
                f"{moved} with `non_blocking=True` came from pageable memory: the driver stages them in its own "
                "buffer, "
                "so they neither overlap with kernels nor reach full speed"
            )
            advice = PIN_NEW if _converts(line, trace) else f"pin the source ({PIN})"
        return self._finding(line, costs, message, advice)

    def _blocking(self, line: StalledLine, costs: bool, trace: Trace) -> Finding:
        lost = f", and the device idled {format_ns(line.lost_ns)}" if line.lost_ns else ""
        moved = f"{plural(line.times, 'copy')} ({format_bytes(line.size_bytes)}) from pageable memory{line.where}"
        message = f"{moved} blocked the host for {format_ns(line.wait_ns)}{lost}"
        advice = PIN_NEW if _converts(line, trace) else f"pin the source ({PIN}) and pass `non_blocking=True`"
        numbers = line.size_bytes <= NUMBER_BYTES * line.times
        if numbers:
            advice = "make numbers on the device (`torch.full((), value, device=...)`), or keep them there"
        return self._finding(line, costs, message, advice, numbers)

    def _finding(self, line: StalledLine, costs: bool, message: str, advice: str, numbers: bool = False) -> Finding:
        return Finding(
            self.code,
            self.severity if costs else "info",
            message,
            advice,
            line.site,
            line.other,
            times=line.times,
            lost_ns=line.lost_ns,
            size_bytes=line.size_bytes,
            device=line.device,
            fix="made there" if numbers else "pin",
        )


def _converts(line: StalledLine, trace: Trace) -> bool:
    """Whether a line copies what it has just converted to another type."""
    return bool(CONVERTED.search(trace.line(line.site)))
