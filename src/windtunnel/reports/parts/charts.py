"""The numbers behind the HTML report's charts: memory over time, who held the peak, and the roofline."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from windtunnel.reports.parts.summary import short
from windtunnel.trace.operation import Kind, Signature
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import MemoryAction, Trace

MAX_POINTS = 2_000  # of a line on a chart: more than a screen has columns
MAX_OWNERS = 8
MAX_KERNELS = 20


@dataclass
class Kernels:
    """All runs of the kernels of one name on one device."""

    device: int
    name: str
    times: int = 0
    duration_ns: int = 0
    flops: int = 0
    size_bytes: int = 0


def memory(trace: Trace, begin_ns: int) -> list[Json]:
    """Per device: times in ms, bytes by category at those times, and the lines that held the peak.

    Where the history has no times (a snapshot of an old torch), the numbers of its actions take their place.
    """
    devices: dict[int, list[MemoryAction]] = {}
    for action in trace.memory_actions():
        if action.action in ("alloc", "free_completed"):
            devices.setdefault(action.device, []).append(action)
    return [_device_memory(device, actions, begin_ns) for device, actions in sorted(devices.items())]


def _device_memory(device: int, actions: list[MemoryAction], begin_ns: int) -> dict[str, object]:
    alive: dict[int, MemoryAction] = {}
    totals: Counter[str] = Counter()
    steps: list[tuple[int, dict[str, int]]] = []
    by_time = actions[-1].time_ns > actions[0].time_ns
    total = peak = peak_at = 0
    for number, action in enumerate(actions):
        if action.action == "alloc":
            alive[action.address] = action
            totals[action.category or "other"] += block_bytes(action)
            total += block_bytes(action)
        elif action.address in alive:
            freed = alive.pop(action.address)
            totals[freed.category or "other"] -= block_bytes(freed)
            total -= block_bytes(freed)
        if total > peak:
            peak, peak_at = total, number
        steps.append((action.time_ns - begin_ns if by_time else number, dict(totals)))
    chosen = _thinned(steps)
    categories = sorted({name for _, values in chosen for name in values})
    return {
        "device": device,
        "by_time": by_time,
        "times": [time / 1e6 if by_time else time for time, _ in chosen],
        "categories": {name: [values.get(name, 0) for _, values in chosen] for name in categories},
        "peak_bytes": peak,
        "peaks": [
            {
                "at": (actions[peak_at].time_ns - begin_ns) / 1e6 if by_time else peak_at,
                "size_bytes": peak,
                "line": short(actions[peak_at].site),
            }
        ],
        "owners": _owners(actions[: peak_at + 1]),
    }


def block_bytes(action: MemoryAction) -> int:
    """What an allocation takes of the device: the request, and what its block is larger."""
    return action.size_bytes + action.excess_bytes


def _thinned(steps: list[tuple[int, dict[str, int]]]) -> list[tuple[int, dict[str, int]]]:
    """At most `MAX_POINTS` of the steps: of each stretch, the one with most memory, so that no peak is lost."""
    if len(steps) <= MAX_POINTS:
        return steps
    size = -(-len(steps) // MAX_POINTS)
    stretches = (steps[start : start + size] for start in range(0, len(steps), size))
    return [max(stretch, key=lambda step: sum(step[1].values())) for stretch in stretches]


def _owners(actions: list[MemoryAction]) -> list[dict[str, object]]:
    alive: dict[int, MemoryAction] = {}
    for action in actions:
        if action.action == "alloc":
            alive[action.address] = action
        else:
            alive.pop(action.address, None)
    held: Counter[tuple[str, str]] = Counter()
    for action in alive.values():
        held[short(action.site), action.category] += block_bytes(action)
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
