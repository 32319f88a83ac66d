"""A memory snapshot of PyTorch, recorded on a real GPU, as the allocators' history of a Trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from understudy import foreign
from understudy.errors import FileFormatError
from understudy.measure.kineto_facts import NEEDS_MEMORY, UNDECIDABLE
from understudy.trace.operation import UNKNOWN_SITE, Site
from understudy.trace.plain import Json
from understudy.trace.trace import MEMORY_ACTIONS, Trace, require_sound

WITHOUT_WORK = (
    "host-sync",
    "idle-gpu",
    "launch-bound",
    "low-tensor-core-use",
    "many-small-copies",
    "pageable-copy",
)
"""What a profile tells and a snapshot alone does not."""
LIBRARY = ("/torch/", "/site-packages/", "/dist-packages/", "<frozen", "/lib/python3")


def load(path: str | Path) -> Trace:
    """A trace that holds nothing but a snapshot's history of allocations.

    Raises:
        FileFormatError: the file is no snapshot, or asks to run code.
        OSError: the file cannot be read.
    """
    trace = Trace()
    trace.facts |= {"source": "measured", "gpus": [], "devices": [], "program": Path(path).name}
    trace.facts |= {"recorded_by": "torch.cuda.memory", "not_decidable": list(UNDECIDABLE + WITHOUT_WORK)}
    add(trace, path)
    return trace


def add(trace: Trace, path: str | Path) -> None:
    """Put a snapshot's history into a trace, in place of what the profiler saw of memory; peaks where none are known.

    Raises:
        FileFormatError: the file is no snapshot, or asks to run code.
        OSError: the file cannot be read.
    """
    snapshot = foreign.from_pickle(foreign.read_bytes(path), path)
    if not isinstance(snapshot, Mapping) or not isinstance(snapshot.get("device_traces"), Sequence):
        raise FileFormatError(f"{path} holds no device_traces, so it is no memory snapshot with a history")
    trace.memory = type(trace.memory)()
    try:
        events = [(event, device) for device, events in enumerate(snapshot["device_traces"]) for event in events]
        events.sort(key=lambda pair: int(pair[0].get("time_us", 0)))
        begin_us = int(events[0][0].get("time_us", 0)) if events else 0
        for event, device in events:
            _row(trace, event, device, begin_us)
    except foreign.UNFIT as error:
        raise FileFormatError(f"{path} has an entry that is none of an allocator's: {error!r}") from error
    require_sound(trace, path)
    _peaks(trace)
    known = trace.facts.get("not_decidable", [])
    trace.facts["not_decidable"] = [code for code in known if code not in NEEDS_MEMORY]


def _row(trace: Trace, event: Json, device: int, begin_us: int) -> None:
    if event["action"] not in MEMORY_ACTIONS:
        return
    address = int(event["addr"] if "addr" in event else event["device_free"])
    site = trace.sites.number(_site(event.get("frames") or ()))
    time_ns = (int(event.get("time_us", begin_us)) - begin_us) * 1000
    action = MEMORY_ACTIONS.index(event["action"])
    trace.memory.append((action, device, int(event.get("stream", 0)), address, int(event["size"]), time_ns, site, 0))


def _site(frames: Sequence[Json]) -> Site:
    """The innermost line of the program, its callers behind it."""
    lines = [(str(one["filename"]), int(one["line"]), str(one["name"])) for one in frames]
    for number, line in enumerate(lines):
        if not any(part in line[0] for part in LIBRARY) and line[0].endswith(".py"):
            return Site(*line, tuple(lines[number + 1 :]))
    return UNKNOWN_SITE


def _peaks(trace: Trace) -> None:
    """The most that was allocated and reserved while the history was kept, where a trace does not know better."""
    now: dict[int, list[int]] = {}
    peaks: dict[int, list[int]] = {}
    sizes: dict[tuple[int, int], int] = {}
    for action in trace.memory_actions():
        held = now.setdefault(action.device, [0, 0])
        key = action.device, action.address
        if action.action == "alloc":
            sizes[key] = action.size_bytes
            held[0] += action.size_bytes
        elif action.action == "free_completed":
            held[0] -= sizes.pop(key, 0)
        elif action.action in ("segment_alloc", "segment_map"):
            held[1] += action.size_bytes
        elif action.action in ("segment_free", "segment_unmap"):
            held[1] -= action.size_bytes
        peak = peaks.setdefault(action.device, [0, 0])
        peak[:] = [max(pair) for pair in zip(peak, held, strict=True)]
    devices, gpus = trace.facts["devices"], trace.facts["gpus"]
    for device, (allocated, reserved) in peaks.items():
        while len(devices) <= device:
            devices.append({})
            gpus.append({"name": "unknown GPU"})
        devices[device].setdefault("peak_allocated_bytes", allocated)
        devices[device].setdefault("peak_reserved_bytes", reserved)
