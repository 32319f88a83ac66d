"""The numbers behind the HTML report's charts: memory over time, who held the peak, and the roofline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from windtunnel.reports.parts.phases import DATA, Phases
from windtunnel.reports.parts.summary import short
from windtunnel.trace.blocks import KernelTimes, blocks
from windtunnel.trace.columns import distinct, sums
from windtunnel.trace.history import Changes, History
from windtunnel.trace.operation import Kind
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import MEMORY_CATEGORIES, Held, Trace

MAX_POINTS = 2_000  # of a line on a chart: more than a screen has columns
MAX_OWNERS = 8
MAX_KERNELS = 20
STEADY = 3  # steps from which on the second is steady
MOST_BORDERS = 12  # of phases in a step: more is no order
NAMES = tuple(name or "other" for name in MEMORY_CATEGORIES)


@dataclass
class Kernels:
    """All runs of the kernels of one name on one device."""

    device: int
    name: str
    times: int = 0
    duration_ns: int = 0
    flops: int = 0
    size_bytes: int = 0


@dataclass
class _Extent:
    """How many actions a device's history holds, and the times of the first and the last."""

    count: int
    first_ns: int
    last_ns: int


def memory(trace: Trace, begin_ns: int) -> list[Json]:
    """Per device: times in ms, bytes by category at those times, and the lines that held the peak.

    Where the history has no times (a snapshot of an old torch), the numbers of its actions take their place.
    """
    devices: dict[int, _Extent] = {}
    for changes in History(trace).changes():
        for device, own in changes.of_devices():
            known = devices.setdefault(device, _Extent(0, int(own.time_ns[0]), 0))
            known.count += len(own)
            known.last_ns = int(own.time_ns[-1])
    ends: list[int] = []  # by the host's time, which the history has
    for block in blocks(trace):
        ends += block.issued[block.kind == Kind.STEP].tolist()
    phases = Phases(trace)
    found = []
    for device, extent in sorted(devices.items()):
        whole = _device_memory(trace, device, extent, begin_ns)
        found.append(
            whole | {"step": _step_memory(trace, device, ends, phases), "capacity_bytes": _capacity(trace, device)}
        )
    return found


def _capacity(trace: Trace, device: int) -> int:
    """What a device's allocator may take, without the context; 0 where it is not known."""
    devices = trace.facts.get("devices", [])
    known = devices[device] if device < len(devices) else {}
    return int(known.get("memory_bytes") or 0) - int(known.get("context_bytes") or 0)


def _step_memory(trace: Trace, device: int, ends: list[int], phases: Phases) -> Json | None:
    """A steady step by the numbers of its allocations and frees, which the host makes in bursts; None of few steps.

    It is the second one, unless another has a higher peak by more than a tenth.
    """
    if len(ends) < STEADY:
        return None
    limits = np.maximum.accumulate(np.array(ends))
    peaks = np.zeros(len(ends) + 1, dtype=np.int64)
    total = until_ns = 0
    for changes in History(trace).changes():
        own = changes.only(changes.device == device)
        if len(own):
            times = np.maximum(np.maximum.accumulate(own.time_ns), until_ns)
            so_far = total + np.cumsum(own.change)
            np.maximum.at(peaks, np.searchsorted(limits, times), so_far)
            total, until_ns = int(so_far[-1]), int(times[-1])
    highest = int(peaks[:-1].argmax())
    chosen = highest if peaks[highest] > 1.1 * peaks[1] else 1
    from_ns, to_ns = ends[chosen - 1] if chosen else -1, ends[chosen]
    return {"number": chosen + 1, **_step_points(trace, device, from_ns, to_ns, phases)}


def _step_points(trace: Trace, device: int, from_ns: int, to_ns: int, phases: Phases) -> Json:
    totals: Counter[str] = Counter()
    points: list[dict[str, int]] = []
    borders: list[Json] = []
    phase = ""
    for own in _until(trace, device, to_ns):
        earlier = np.maximum.accumulate(own.time_ns > from_ns).argmax() if (own.time_ns > from_ns).any() else len(own)
        _add(totals, own, 0, int(earlier))
        for index in range(int(earlier), len(own)):
            _add(totals, own, index, index + 1)
            if own.time_ns[index] <= from_ns:
                continue
            if own.allocates[index]:
                now = phases.of(trace.sites[own.site[index]], trace.roles[own.role[index]].operator)
                if now and now not in (phase, DATA):
                    phase = now
                    borders.append({"at": len(points), "words": now})
            points.append(dict(totals))
    held = [sum(point.values()) for point in points]
    stretch = max(1, -(-len(points) // MAX_POINTS))
    kept = [
        max(range(first, min(first + stretch, len(points))), key=held.__getitem__)
        for first in range(0, len(points), stretch)
    ]
    categories = sorted({name for at in kept for name in points[at]})
    peak = max(kept, key=held.__getitem__, default=0)
    return {
        "times": kept,
        "categories": {name: [points[at].get(name, 0) for at in kept] for name in categories},
        "borders": borders if len(borders) <= MOST_BORDERS else [],
        "peak": {"at": peak, "size_bytes": held[peak] if held else 0},
    }


def _until(trace: Trace, device: int, to_ns: int) -> Iterator[Changes]:
    """A device's history until its first action after a time."""
    for changes in History(trace).changes():
        own = changes.only(changes.device == device)
        later = own.time_ns > to_ns
        if later.any():
            yield own.only(np.arange(len(own)) < later.argmax())
            return
        if len(own):
            yield own


def _add(totals: Counter[str], own: Changes, begin: int, end: int) -> None:
    """Add some changes to the bytes of each category."""
    for category in distinct(own.category[begin:end][own.allocates[begin:end]])[0]:
        totals[NAMES[category]] += 0
    for number, change in enumerate(sums(own.category[begin:end], own.change[begin:end], len(NAMES))):
        if change:
            totals[NAMES[number]] += change


class _Line:
    """A device's memory over time, of which at most `MAX_POINTS` points are kept.

    Of each stretch it is the one with most memory, so that no peak is lost.
    """

    def __init__(self, extent: _Extent) -> None:
        self.stretch = -(-extent.count // MAX_POINTS)
        self.times: list[int] = []
        self.numbers: list[int] = []
        self.points: list[dict[str, int]] = []
        self.peak = self.peak_at = self.peak_row = self.peak_time_ns = self.peak_site = 0
        self._totals: Counter[str] = Counter()
        self._number = self._total = self._most = 0

    def see(self, own: Changes) -> None:
        """Take notice of a block of the device's history."""
        numbers = self._number + np.arange(len(own))
        so_far = self._total + np.cumsum(own.change)
        highest = int(so_far.argmax())
        if so_far[highest] > self.peak or not self._number:
            self.peak, self.peak_at = max(int(so_far[highest]), 0), int(numbers[highest])
            self.peak_row, self.peak_time_ns, self.peak_site = (
                int(one[highest]) for one in (own.row, own.time_ns, own.site)
            )
        borders = [0, *(np.flatnonzero(numbers % self.stretch == 0)).tolist(), len(own)]
        done = 0
        for begin, end in pairwise(sorted(set(borders))):
            at = begin + int(so_far[begin:end].argmax())
            is_new = numbers[begin] % self.stretch == 0
            if is_new or so_far[at] > self._most:
                if not is_new:
                    for kept in (self.times, self.numbers, self.points):
                        del kept[-1]
                self._most = int(so_far[at])
                _add(self._totals, own, done, at + 1)
                done = at + 1
                self.times.append(int(own.time_ns[at]))
                self.numbers.append(int(numbers[at]))
                self.points.append(dict(self._totals))
        _add(self._totals, own, done, len(own))
        self._number, self._total = int(numbers[-1]) + 1, int(so_far[-1])


def _device_memory(trace: Trace, device: int, extent: _Extent, begin_ns: int) -> dict[str, object]:
    by_time = extent.last_ns > extent.first_ns
    line = _Line(extent)
    for changes in History(trace).changes():
        own = changes.only(changes.device == device)
        if len(own):
            line.see(own)
    categories = sorted({name for values in line.points for name in values})
    return {
        "device": device,
        "by_time": by_time,
        "times": [(time - begin_ns) / 1e6 for time in line.times] if by_time else line.numbers,
        "categories": {name: [values.get(name, 0) for values in line.points] for name in categories},
        "peak_bytes": line.peak,
        "peaks": [
            {
                "at": (line.peak_time_ns - begin_ns) / 1e6 if by_time else line.peak_at,
                "size_bytes": line.peak,
                "line": short(trace.sites[line.peak_site]),
            }
        ],
        "owners": _owners(trace, device, line.peak_row),
    }


def _owners(trace: Trace, device: int, row: int) -> list[dict[str, object]]:
    history = History(trace)
    history.read(row)
    held: Counter[tuple[str, str]] = Counter()
    for (where, _), taken in history.alive.items():
        if where == device:
            held[short(trace.sites[taken.site]), MEMORY_CATEGORIES[Held.of(taken.packed).category]] += taken.size_bytes
    return [
        {"line": line, "category": category, "size_bytes": size}
        for (line, category), size in held.most_common(MAX_OWNERS)
    ]


def kernels(trace: Trace) -> list[Kernels]:
    """Kernels by device and name, those that took longest first."""
    found = KernelTimes()
    for block in blocks(trace):
        found.see(block)
    by_name: dict[tuple[int, str], Kernels] = {}
    for (device, number), (times, duration_ns, size_bytes) in found.sums.items():
        signature = trace.signatures[number]
        group = by_name.setdefault((device, signature.name), Kernels(device, signature.name))
        group.times += times
        group.duration_ns += duration_ns
        group.flops += signature.flops * times
        group.size_bytes += size_bytes
    return sorted(by_name.values(), key=lambda group: (-group.duration_ns, group.name))


def roofline(trace: Trace, groups: list[Kernels]) -> Json | None:
    """Achieved speed over arithmetic intensity, and the first GPU's roofs; None where no kernel counts its work."""
    counted = [group for group in groups if group.flops and group.size_bytes and group.duration_ns][:MAX_KERNELS]
    gpus = trace.facts.get("gpus", [])
    if not counted or not gpus or not gpus[0].get("peak_flops"):
        return None
    return {
        "gpu": gpus[0].get("name", ""),
        "bandwidth_bytes_per_s": gpus[0].get("memory_bandwidth_bytes_per_s"),
        "peaks": {name: peak for name, peak in gpus[0]["peak_flops"].items() if name in ("fp32", "fp16", "tf32")},
        "points": [
            {
                "name": f"{group.name} (cuda:{group.device})",
                "intensity": group.flops / group.size_bytes,
                "flops_per_s": group.flops / (group.duration_ns / 1e9),
                "duration_ns": group.duration_ns,
                "times": group.times,
            }
            for group in counted
        ],
    }
