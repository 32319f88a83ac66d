"""The check `growing-memory`: memory that every step leaves behind."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np

from windtunnel.checks import Check
from windtunnel.trace.columns import Numbers, distinct
from windtunnel.trace.finding import Finding
from windtunnel.trace.history import Changes, History
from windtunnel.trace.operation import UNKNOWN_SITE, Kind, Site
from windtunnel.trace.schema import Leak
from windtunnel.trace.trace import Record, Trace
from windtunnel.trace.units import format_bytes, format_share, plural

MIN_STEPS = 8  # of steady growth; caches and optimizer states fill within the first few steps
WARM_UP = 2
MIN_BYTES = 4 << 10  # a step: a log of losses kept on the device grows by 512 bytes for each value, which is fine
MIN_SHARE = 0.1  # of the peak, where no history tells how much each step adds: less may well be kept on purpose


class Growth(NamedTuple):
    """What was alive at the end of each step but the first two, and by which lines at the first and last of these."""

    total_bytes: list[int]
    first: dict[Site, int]
    last: dict[Site, int]


class GrowingMemory(Check):
    """Memory that grows with every step.

    ## What it does
    Follows a sample of the allocations, and reports lines whose memory stays: evenly from the first times that they run
    to the program's last kernels, and at least a tenth of the peak in all. With the history of allocations it looks at
    the memory in use at the end of each optimizer step instead, and reports growth by more than 4 KiB in every step but
    the first two, over eight steps or more.

    ## Why it is bad
    Something keeps a reference across steps, and sooner or later memory is full. Usually it is a loss that is added up
    together with the graph that computed it.

    ## Example
    ```python
    total = 0.0
    for x, y in batches:
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        total += loss
    ```

    ## Use instead
    ```python
    total = torch.zeros((), device="cuda")
    for x, y in batches:
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    ```
    """

    code: ClassVar = "growing-memory"
    kinds: ClassVar = frozenset({Kind.STEP})

    def __init__(self) -> None:
        self.steps_ns: list[int] = []

    def see(self, record: Record, trace: Trace) -> None:
        """Remember when steps ended."""
        self.steps_ns.append(record.issued_ns)

    def findings(self, trace: Trace) -> list[Finding]:
        """One finding a device."""
        found = self._from_history(trace)
        known = {finding.device for finding in found}
        left = (self._left_behind(trace, leak) for leak in trace.facts.get("leaks", ()) if leak["device"] not in known)
        return found + [finding for finding in left if finding is not None]

    def _from_history(self, trace: Trace) -> list[Finding]:
        if not len(trace.memory) or len(self.steps_ns) < MIN_STEPS + WARM_UP:
            return []
        ends = np.maximum.accumulate(np.array(self.steps_ns))
        devices: dict[int, _Reader] = {}
        for changes in History(trace).changes():
            for device, own in changes.of_devices():
                devices.setdefault(device, _Reader(trace, ends)).see(own)
        judged = (self._judge(trace, device, reader.growth()) for device, reader in sorted(devices.items()))
        return [finding for finding in judged if finding is not None]

    def _judge(self, trace: Trace, device: int, growth: Growth) -> Finding | None:
        totals = growth.total_bytes
        if min(later - earlier for earlier, later in pairwise(totals)) < MIN_BYTES:
            return None
        steps = len(totals) - 1
        each = (totals[-1] - totals[0]) // steps
        site = max(
            growth.last,
            key=lambda site: (bool(site.file), growth.last[site] - growth.first.get(site, 0)),
            default=UNKNOWN_SITE,
        )
        total = _memory_bytes(trace, device)
        left = max(0, total - totals[-1]) // each
        end = f"; at this rate it is full after {plural(left, 'more step')}" if total else ""
        return self._finding(
            f"memory in use on cuda:{device} grew by {format_bytes(each)} in each of {plural(steps, 'step')}{end}",
            site, device, steps, totals[-1] - totals[0], each * (steps + WARM_UP), _peak_bytes(trace, device),
        )  # fmt: skip

    def _left_behind(self, trace: Trace, leak: Leak) -> Finding | None:
        device = leak["device"]
        peak, total = _peak_bytes(trace, device), _memory_bytes(trace, device)
        grown = min(leak["size_bytes"], peak)  # a sample tells about how much
        if grown < MIN_SHARE * peak:
            return None
        others = f", and {plural(leak['lines'] - 1, 'other line')} some more" if leak["lines"] > 1 else ""
        more = max(0, total - peak) // grown
        end = f"; with {plural(more, 'time')} as many iterations memory is full" if total else ""
        return self._finding(
            f"memory in use on cuda:{device} grew by about {format_bytes(grown)} all along the program: this line left "
            f"about {plural(leak['blocks'], 'block')} of memory behind{others}{end}",
            Site(leak["file"], leak["line"], leak["function"]), device, leak["blocks"], grown, grown, peak,
        )  # fmt: skip

    def _finding(
        self, message: str, site: Site, device: int, times: int, size_bytes: int, saved_bytes: int, peak: int
    ) -> Finding:
        saved_share = min(1.0, saved_bytes / peak) if peak else None
        if saved_share is not None:
            message += f"; fixing this would save about {format_share(saved_share)} of the peak"
        return Finding(
            self.code,
            self.severity,
            message,
            "look for what keeps tensors from one step or iteration to the next: add up `loss.detach()` or "
            "`loss.item()` instead of `loss`, and keep no outputs in lists without `.detach()`",
            site,
            times=times,
            size_bytes=size_bytes,
            device=device,
            saved_share=saved_share,
            saved_of="" if saved_share is None else "peak",
        )


def _memory_bytes(trace: Trace, device: int) -> int:
    gpus = trace.facts.get("gpus", [])
    return int(gpus[device].get("memory_bytes", 0)) if device < len(gpus) else 0


def _peak_bytes(trace: Trace, device: int) -> int:
    devices = trace.facts.get("devices", [])
    return int(devices[device].get("peak_allocated_bytes") or 0) if device < len(devices) else 0


class _Reader:
    """Reads one device's history for its growth, given when steps end."""

    def __init__(self, trace: Trace, ends: Numbers) -> None:
        self.sites = trace.sites
        self.ends = ends
        self.totals: list[int] = []  # at the ends of the steps so far
        self.held = np.zeros(len(trace.sites), dtype=np.int64)  # by line
        self.lines: dict[int, None] = {}  # in the order in which they first allocate
        self.first: dict[Site, int] = {}
        self.until_ns = 0

    def see(self, own: Changes) -> None:
        """Take notice of a block of the history."""
        # What happens at the same moment may come after the step: at the program's end everything is given back then.
        times = np.maximum(np.maximum.accumulate(own.time_ns), self.until_ns)
        self.until_ns = int(times[-1])
        left = self.ends[len(self.totals) :]
        places = np.searchsorted(times, left[left <= self.until_ns]).tolist()
        so_far = int(self.held.sum()) + np.concatenate([[0], np.cumsum(own.change)])
        warm = WARM_UP - len(self.totals)
        self.totals += so_far[places].tolist()
        begin = 0
        if 0 <= warm < len(places):
            begin = places[warm]
            self._add(own, 0, begin)
            self.first = self._by_line()
        self._add(own, begin, places[-1] if len(places) == len(left) and places else len(own) if len(left) else begin)

    def growth(self) -> Growth:
        """What was found; steps that end after all of it end with what there is then."""
        totals = self.totals + [int(self.held.sum())] * (len(self.ends) - len(self.totals))
        last = self._by_line()
        return Growth(totals[WARM_UP:], self.first if len(self.totals) > WARM_UP else last, last)

    def _add(self, own: Changes, begin: int, end: int) -> None:
        np.add.at(self.held, own.owner[begin:end], own.change[begin:end])
        self.lines |= dict.fromkeys(distinct(own.owner[begin:end][own.allocates[begin:end]])[0])

    def _by_line(self) -> dict[Site, int]:
        return {self.sites[number]: int(self.held[number]) for number in self.lines}
