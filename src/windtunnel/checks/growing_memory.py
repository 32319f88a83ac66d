"""The check `growing-memory`: memory that every step leaves behind."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from itertools import pairwise
from typing import ClassVar, NamedTuple

from windtunnel.checks import Check
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import UNKNOWN_SITE, Kind, Site
from windtunnel.trace.trace import MemoryAction, Record, Trace
from windtunnel.trace.units import format_bytes, format_share, plural

MIN_STEPS = 8  # of steady growth; caches and optimizer states fill within the first few steps
WARM_UP = 2
MIN_BYTES = 4 << 10  # a step: a log of losses kept on the device grows by 512 bytes for each value, which is fine


SET_UP = frozenset({"parameter", "optimizer", "gradient", "workspace"})  # what is made once, however many lines do it
LAST = 2  # blocks of the last iteration: what it would have given back is still there at the end
LATE = 0.9  # of the kernels have run when the last block is allocated: what was loaded before the work is no growth


class Growth(NamedTuple):
    """What was alive at the end of each step but the first two, and by which lines at the first and last of these."""

    total_bytes: list[int]
    first: dict[Site, int]
    last: dict[Site, int]


class GrowingMemory(Check):
    """Memory that grows with every step.

    ## What it does
    Looks at the memory in use at the end of each optimizer step, and reports growth by more than 4 KiB in every step
    but the first two, over eight steps or more. In a loop without an optimizer it looks at what a line allocates in
    each iteration and nothing frees, up to the program's last kernels. It needs the history of allocations.

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
        if not len(trace.memory):
            return []
        devices: dict[int, list[MemoryAction]] = {}
        for action in trace.memory_actions():
            if action.action in ("alloc", "free_completed"):
                devices.setdefault(action.device, []).append(action)
        found = []
        for device, actions in sorted(devices.items()):
            steps_ns, what = self.steps_ns, "step"
            if len(steps_ns) < MIN_STEPS + WARM_UP:
                steps_ns, what = _rounds(trace, device, actions), "iteration"
            if len(steps_ns) < MIN_STEPS + WARM_UP:
                continue
            finding = self._judge(trace, device, _growth(actions, steps_ns), what)
            if finding is not None:
                found.append(finding)
        return found

    def _judge(self, trace: Trace, device: int, growth: Growth, what: str) -> Finding | None:
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
        gpus = trace.facts.get("gpus", [])
        total = gpus[device].get("memory_bytes", 0) if device < len(gpus) else 0
        left = max(0, total - totals[-1]) // each
        end = f"; at this rate it is full after {plural(left, f'more {what}')}" if total else ""
        devices = trace.facts.get("devices", [])
        peak = devices[device].get("peak_allocated_bytes") or 0 if device < len(devices) else 0
        saved_share = min(1.0, each * (steps + WARM_UP) / peak) if peak else None
        if saved_share is not None:
            end += f"; fixing this would save about {format_share(saved_share)} of the peak"
        return Finding(
            self.code,
            self.severity,
            f"memory in use on cuda:{device} grew by {format_bytes(each)} in each of {plural(steps, what)}{end}",
            f"look for what keeps tensors from one {what} to the next: add up `loss.detach()` or `loss.item()` "
            "instead of `loss`, and "
            "keep no outputs in lists without `.detach()`",
            site,
            times=steps,
            size_bytes=totals[-1] - totals[0],
            device=device,
            saved_share=saved_share,
            saved_of="" if saved_share is None else "peak",
        )


def _rounds(trace: Trace, device: int, actions: list[MemoryAction]) -> list[int]:
    """When each iteration of a loop ended, by a line whose blocks stay, one an iteration; empty where there is none."""
    alive: dict[int, MemoryAction] = {}
    for action in actions:
        if action.action == "alloc":
            alive[action.address] = action
        elif action.address in alive and _ended_by_program(action, actions):
            del alive[action.address]
    kept: dict[Site, list[MemoryAction]] = {}
    for action in alive.values():
        if action.site.file and action.size_bytes >= MIN_BYTES and action.category not in SET_UP:
            kept.setdefault(action.site, []).append(action)
    site = max(kept, key=lambda one: len(kept[one]), default=None)
    if site is None or len(kept[site]) < MIN_STEPS + WARM_UP:
        return []
    kernels = sorted(row[4] for row in trace.rows if row[0] == Kind.KERNEL and trace.lanes[row[1]].device == device)
    times = [action.time_ns for action in kept[site]]
    between = all(bisect(kernels, later) > bisect(kernels, earlier) for earlier, later in pairwise(times))
    late = bisect(kernels, times[-1]) >= LATE * len(kernels)
    return times[:-LAST] if between and late else []


def _ended_by_program(action: MemoryAction, actions: list[MemoryAction]) -> bool:
    """Whether a block was freed before the end, at which everything is given back."""
    return action.time_ns < actions[-1].time_ns


def _growth(actions: list[MemoryAction], steps_ns: list[int]) -> Growth:
    alive: dict[int, MemoryAction] = {}
    by_site: Counter[Site] = Counter()
    totals: list[int] = []
    first: dict[Site, int] = {}
    total = position = 0
    for number, step_ns in enumerate(steps_ns):
        # What happens at the same moment may come after the step: at the program's end everything is given back then.
        while position < len(actions) and actions[position].time_ns < step_ns:
            action = actions[position]
            position += 1
            if action.action == "alloc":
                alive[action.address] = action
                by_site[action.site] += action.size_bytes + action.excess_bytes
                total += action.size_bytes + action.excess_bytes
            elif action.address in alive:
                freed = alive.pop(action.address)
                by_site[freed.site] -= freed.size_bytes + freed.excess_bytes
                total -= freed.size_bytes + freed.excess_bytes
        if number == WARM_UP:
            first = dict(by_site)
        if number >= WARM_UP:
            totals.append(total)
    return Growth(totals, first, dict(by_site))
