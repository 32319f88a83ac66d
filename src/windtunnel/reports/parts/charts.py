"""The numbers behind the HTML report's charts: memory over time, who held the peak, and the roofline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from windtunnel.reports.parts.phases import DATA, Phases
from windtunnel.reports.parts.summary import short
from windtunnel.trace.operation import Kind, Signature
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import MEMORY_ACTIONS, MEMORY_CATEGORIES, Held, Trace

MAX_POINTS = 2_000  # of a line on a chart: more than a screen has columns
MAX_OWNERS = 8
MAX_KERNELS = 20
STEADY = 3  # steps from which on the second is steady
MOST_BORDERS = 12  # of phases in a step: more is no order
ALLOC, FREED = KEPT = MEMORY_ACTIONS.index("alloc"), MEMORY_ACTIONS.index("free_completed")


@dataclass
class Kernels:
    """All runs of the kernels of one name on one device."""

    device: int
    name: str
    times: int = 0
    duration_ns: int = 0
    flops: int = 0
    size_bytes: int = 0


class _Action(NamedTuple):
    """An allocation, or the end of one, with what its block takes of the device."""

    allocates: bool
    address: int
    size_bytes: int
    time_ns: int
    site: int
    category: int
    role: int


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
    for action, device, _, _, _, time_ns, _, _ in trace.memory:
        if action in KEPT:
            known = devices.setdefault(device, _Extent(0, time_ns, time_ns))
            known.count += 1
            known.last_ns = time_ns
    ends = [row[4] for row in trace.rows if row[0] == Kind.STEP]  # by the host's time, which the history has
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
    peaks = [0] * (len(ends) + 1)
    total = step = 0
    alive: dict[int, int] = {}
    for action in _actions(trace, device):
        while step < len(ends) and action.time_ns > ends[step]:
            step += 1
        total += action.size_bytes if action.allocates else -alive.get(action.address, 0)
        alive[action.address] = action.size_bytes if action.allocates else 0
        peaks[step] = max(peaks[step], total)
    highest = max(range(len(ends)), key=lambda number: (peaks[number], -number))
    chosen = highest if peaks[highest] > 1.1 * peaks[1] else 1
    from_ns, to_ns = ends[chosen - 1] if chosen else -1, ends[chosen]
    return {"number": chosen + 1, **_step_points(trace, device, from_ns, to_ns, phases)}


def _step_points(trace: Trace, device: int, from_ns: int, to_ns: int, phases: Phases) -> Json:
    held: dict[int, tuple[str, int]] = {}
    totals: Counter[str] = Counter()
    points: list[dict[str, int]] = []
    borders: list[Json] = []
    phase = ""
    for action in _actions(trace, device):
        if action.time_ns > to_ns:
            break
        if action.allocates:
            category = MEMORY_CATEGORIES[action.category] or "other"
            held[action.address] = category, action.size_bytes
            totals[category] += action.size_bytes
        elif action.address in held:
            category, size_bytes = held.pop(action.address)
            totals[category] -= size_bytes
        if action.time_ns > from_ns:
            now = phases.of(trace.sites[action.site], trace.roles[action.role].operator) if action.allocates else phase
            if now and now != phase and now != DATA:
                phase = now
                borders.append({"at": len(points), "words": now})
            points.append(dict(totals))
    sums = [sum(point.values()) for point in points]
    stretch = max(1, -(-len(points) // MAX_POINTS))
    kept = [
        max(range(first, min(first + stretch, len(points))), key=sums.__getitem__)
        for first in range(0, len(points), stretch)
    ]
    categories = sorted({name for at in kept for name in points[at]})
    peak = max(kept, key=sums.__getitem__, default=0)
    return {
        "times": kept,
        "categories": {name: [points[at].get(name, 0) for at in kept] for name in categories},
        "borders": borders if len(borders) <= MOST_BORDERS else [],
        "peak": {"at": peak, "size_bytes": sums[peak] if sums else 0},
    }


def _actions(trace: Trace, wanted: int) -> Iterator[_Action]:
    """What a device's history holds, in order."""
    for action, device, _, address, size, time_ns, site, packed in trace.memory:
        if device == wanted and action in KEPT:
            held = Held.of(packed)
            yield _Action(action == ALLOC, address, size + held.excess_bytes, time_ns, site, held.category, held.role)


def _device_memory(trace: Trace, device: int, extent: _Extent, begin_ns: int) -> dict[str, object]:
    alive: dict[int, tuple[str, int]] = {}
    totals: Counter[str] = Counter()
    by_time = extent.last_ns > extent.first_ns
    # At most `MAX_POINTS` points: of each stretch the one with most memory, so that no peak is lost.
    stretch = -(-extent.count // MAX_POINTS)
    chosen: list[tuple[int, dict[str, int]]] = []
    total = peak = peak_at = peak_time_ns = peak_site = most = 0
    for number, action in enumerate(_actions(trace, device)):
        if action.allocates:
            category = MEMORY_CATEGORIES[action.category] or "other"
            alive[action.address] = category, action.size_bytes
            totals[category] += action.size_bytes
            total += action.size_bytes
        elif action.address in alive:
            category, size_bytes = alive.pop(action.address)
            totals[category] -= size_bytes
            total -= size_bytes
        if total > peak or not number:
            peak, peak_at, peak_time_ns, peak_site = max(total, 0), number, action.time_ns, action.site
        if number % stretch == 0 or total > most:
            if number % stretch:
                chosen.pop()
            most = total
            chosen.append((action.time_ns - begin_ns if by_time else number, dict(totals)))
    categories = sorted({name for _, values in chosen for name in values})
    return {
        "device": device,
        "by_time": by_time,
        "times": [time / 1e6 if by_time else time for time, _ in chosen],
        "categories": {name: [values.get(name, 0) for _, values in chosen] for name in categories},
        "peak_bytes": peak,
        "peaks": [
            {
                "at": (peak_time_ns - begin_ns) / 1e6 if by_time else peak_at,
                "size_bytes": peak,
                "line": short(trace.sites[peak_site]),
            }
        ],
        "owners": _owners(trace, islice(_actions(trace, device), peak_at + 1)),
    }


def _owners(trace: Trace, actions: Iterable[_Action]) -> list[dict[str, object]]:
    alive: dict[int, _Action] = {}
    for action in actions:
        if action.allocates:
            alive[action.address] = action
        else:
            alive.pop(action.address, None)
    held: Counter[tuple[str, str]] = Counter()
    for action in alive.values():
        held[short(trace.sites[action.site]), MEMORY_CATEGORIES[action.category]] += action.size_bytes
    return [
        {"line": line, "category": category, "size_bytes": size}
        for (line, category), size in held.most_common(MAX_OWNERS)
    ]


def kernels(trace: Trace) -> list[Kernels]:
    """Kernels by device and name, those that took longest first."""
    by_signature: dict[tuple[int, int], tuple[Signature, list[int]]] = {}
    for record in trace:
        if record.kind == Kind.KERNEL:
            # The table's signatures are shared objects: their identity is the cheapest key.
            key = record.lane.device, id(record.signature)
            if key not in by_signature:
                by_signature[key] = record.signature, [0, 0, 0]
            sums = by_signature[key][1]
            sums[0] += 1
            sums[1] += record.duration_ns
            sums[2] += record.value
    by_name: dict[tuple[int, str], Kernels] = {}
    for (device, _), (signature, (times, duration_ns, size_bytes)) in by_signature.items():
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
