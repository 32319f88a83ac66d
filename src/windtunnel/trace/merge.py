"""The traces of several processes as one, to be shown: all devices and hosts side by side."""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.trace.operation import Kind, Lane
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Held, Trace

SUMMED = (
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "peak_at_most_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "context_bytes",
    "retries",
    "out_of_memory",
)


def merge(traces: Sequence[Trace]) -> Trace:
    """One trace of several processes of a run, the first of which is rank 0; that trace itself when it is alone.

    Host threads get numbers of their own. Devices are those that any process saw, in the machine's order, whatever
    numbers CUDA_VISIBLE_DEVICES gave them; the totals of a device that several processes used are added up. The first
    process's steps and batches are everybody's. Rows stay in the order of each process, one process after the other.
    """
    if len(traces) == 1:
        return traces[0]
    numbers = _numbers(traces)
    out = Trace()
    out.facts = _facts(traces, numbers)
    out.folder = traces[0].folder
    for trace in traces:
        for file, lines in trace.sources.items():
            out.sources.setdefault(file, {}).update(lines)
    threads = 1 + max((lane.thread for trace in traces for lane in trace.lanes), default=0)
    for index, trace in enumerate(traces):
        _add(out, trace, numbers[index], index * threads, steps=index == 0)
    for index, devices in enumerate(_memory_owners(traces, numbers)):
        _add_memory(out, traces[index], numbers[index], devices)
    return out


def _numbers(traces: Sequence[Trace]) -> list[dict[int, int]]:
    """For each process: from its numbers of devices to those of the merged trace."""
    seen = [
        {index: int(device.get("physical", index)) for index, device in enumerate(trace.facts.get("devices", []))}
        for trace in traces
    ]
    order = sorted({number for mapping in seen for number in mapping.values()})
    return [{index: order.index(number) for index, number in mapping.items()} for mapping in seen]


def _add(out: Trace, trace: Trace, numbers: dict[int, int], first_thread: int, steps: bool) -> None:
    lanes = [
        out.lanes.number(Lane(numbers.get(lane.device, lane.device), lane.stream, lane.thread + first_thread))
        for lane in trace.lanes
    ]
    signatures = [out.signatures.number(signature) for signature in trace.signatures]
    sites = [out.sites.number(site) for site in trace.sites]
    first = {
        Kind.HAZARD: len(out.hazards),
        Kind.NOTE: len(out.notes),
        Kind.FORK: first_thread,
        Kind.JOIN: first_thread,
    }
    out.hazards += trace.hazards
    out.notes += trace.notes
    for kind, lane, signature, site, issued, start, end, value in trace.rows:
        if steps or kind not in (Kind.STEP, Kind.BATCH):
            value = lanes[value] if kind == Kind.BARRIER else value + first.get(Kind(kind), 0)
            out.rows.append((kind, lanes[lane], signatures[signature], sites[site], issued, start, end, value))


def _memory_owners(traces: Sequence[Trace], numbers: Sequence[dict[int, int]]) -> list[set[int]]:
    """For each process the devices whose memory history is taken from it: addresses of two processes would collide."""
    counts: dict[int, list[int]] = {}
    for index, trace in enumerate(traces):
        for device in trace.memory.column(1):
            counts.setdefault(numbers[index].get(device, device), [0] * len(traces))[index] += 1
    owners: list[set[int]] = [set() for _ in traces]
    for device, rows in counts.items():
        owners[rows.index(max(rows))].add(device)
    return owners


def _add_memory(out: Trace, trace: Trace, numbers: dict[int, int], devices: set[int]) -> None:
    sites = [out.sites.number(site) for site in trace.sites]
    roles = [out.roles.number(role) for role in trace.roles]
    for action, device, stream, address, size, time, site, value in trace.memory:
        number = numbers.get(device, device)
        if number in devices:
            held = Held.of(value)
            value = held._replace(role=roles[held.role]).packed()
            out.memory.append((action, number, stream, address, size, time, sites[site], value))


def _facts(traces: Sequence[Trace], numbers: Sequence[dict[int, int]]) -> Json:
    gpus: dict[int, Json] = {}
    devices: dict[int, Json] = {}
    for trace, mapping in zip(traces, numbers, strict=True):
        for index, totals in enumerate(trace.facts.get("devices", [])):
            number = mapping[index]
            gpus.setdefault(number, trace.facts["gpus"][index])
            known = devices.setdefault(number, {**totals, **dict.fromkeys(SUMMED, 0)})
            for name in SUMMED:
                known[name] += totals.get(name) or 0
    bands = [trace.facts["band"] for trace in traces if trace.facts.get("band") is not None]
    return {
        **traces[0].facts,
        "gpus": [gpus[number] for number in sorted(gpus)],
        "devices": [devices[number] for number in sorted(devices)],
        "band": max(bands, default=None),
        "processes": len(traces),
        **_measured(traces),
        "incomplete": any(trace.facts.get("incomplete") for trace in traces),
        "unwritten": next((why for trace in traces if (why := trace.facts.get("unwritten"))), ""),
    }


def _measured(traces: Sequence[Trace]) -> Json:
    """The facts of this machine: those of the process that took longest, for which the others wait."""
    found: Json = {"compile_ns": max(trace.facts.get("compile_ns", 0) for trace in traces)}
    works = [trace.facts["host_work"] for trace in traces if "host_work" in trace.facts]
    if works:
        found["host_work"] = max(works, key=lambda work: int(work.get("round_ns", 0)))
    found |= {key: traces[0].facts[key] for key in ("host_from", "host_from_file") if key in traces[0].facts}
    return found
