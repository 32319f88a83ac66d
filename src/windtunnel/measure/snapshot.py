"""A memory snapshot of PyTorch, recorded on a real GPU, as the allocators' history of a Trace."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

from windtunnel import foreign
from windtunnel.analysis.remedies import SETTINGS
from windtunnel.analysis.replay import Replay
from windtunnel.analysis.snapshot_file import MOST_DEVICES, MOST_MEMORY, Snapshot, decode, from_dict
from windtunnel.analysis.start_state import start_segments
from windtunnel.analysis.what_if import outcome
from windtunnel.errors import FileFormatError
from windtunnel.machine.memory.settings import parse
from windtunnel.measure.kineto_facts import NEEDS_MEMORY, UNDECIDABLE
from windtunnel.trace.operation import UNKNOWN_GPU, UNKNOWN_SITE, Note, Site
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import MEMORY_ACTIONS, MEMORY_EXCESS, Trace, require_sound

WITHOUT_WORK = (
    "host-sync",
    "idle-gpu",
    "launch-bound",
    "low-tensor-core-use",
    "many-small-copies",
    "pageable-copy",
)
"""What a profile shows and a snapshot alone does not."""
ENTRY = ("action", "addr", "size", "stream")
LIBRARY = ("/torch/", "/site-packages/", "/dist-packages/", "<frozen", "/lib/python3", "/torchinductor_")
"""Parts of the names of files that are not the program's: libraries, and what torch.compile generated."""


def load(path: str | Path) -> Trace:
    """A trace that holds nothing but a snapshot's history of allocations.

    Raises:
        FileFormatError: the file is no snapshot, or asks to run code.
        OSError: the file cannot be read.
    """
    trace = Trace()
    snapshot = _decoded(path)
    ours = snapshot.get("windtunnel")
    emulated = isinstance(ours, Mapping) and ours.get("source") == "modelled"
    source = "modelled" if emulated else "measured"
    gpus = _gpus(ours.get("gpus")) if isinstance(ours, Mapping) else []
    trace.facts |= {"source": source, "gpus": gpus, "devices": [{} for _ in gpus], "program": Path(path).name}
    trace.facts |= {"recorded_by": "torch.cuda.memory", "not_decidable": list(UNDECIDABLE + WITHOUT_WORK)}
    _add(trace, snapshot, path)
    return trace


def _gpus(described: object) -> list[Json]:
    """The GPUs that a snapshot of ours names, with their memory; none where that part is not as it was written."""
    rows = described if isinstance(described, Sequence) and len(described) <= MOST_DEVICES else ()
    gpus: list[Json] = []
    for row in rows:
        if not isinstance(row, Mapping) or not isinstance(row.get("name"), str):
            return []
        memory_bytes = row.get("memory_bytes")
        known = isinstance(memory_bytes, int) and 0 < memory_bytes <= MOST_MEMORY
        gpus.append({"name": row["name"]} | ({"memory_bytes": memory_bytes} if known else {}))
    return gpus


def add(trace: Trace, path: str | Path) -> None:
    """Put a snapshot's history into a trace, in place of what the profiler saw of memory; peaks where none are known.

    Raises:
        FileFormatError: the file is no snapshot, or asks to run code.
        OSError: the file cannot be read.
    """
    _add(trace, _decoded(path), path)


def _decoded(path: str | Path) -> Json:
    """What the file holds, once it is known to be a snapshot."""
    snapshot = decode(foreign.read_bytes(path), path)
    if not isinstance(snapshot, dict) or not any(
        isinstance(snapshot.get(name), Sequence) for name in ("device_traces", "segments")
    ):
        raise FileFormatError(f"{path} holds neither device_traces nor segments, so it is not a memory snapshot")
    return snapshot


def _add(trace: Trace, snapshot: Json, path: str | Path) -> None:
    trace.memory = type(trace.memory)()
    try:
        events = [
            (_entry(event), device)
            for device, found in enumerate(snapshot.get("device_traces") or ())
            for event in found
        ]
        events.sort(key=lambda pair: int(pair[0].get("time_us", 0)))
        begin_us = int(events[0][0].get("time_us", 0)) if events else 0
        trace.facts["history_allocations"] = sum(event["action"] == "alloc" for event, _ in events)
        devices = from_dict(snapshot, path) if "segments" in snapshot else []
        lines = _Lines()
        for one in devices:
            _start(trace, one, _frames(dict(snapshot)), lines)
        for event, device in events:
            _row(trace, event, device, begin_us, lines)
        _notes(trace)
    except foreign.UNFIT as error:
        raise FileFormatError(f"{path} has an entry that an allocator does not write: {error!r}") from error
    require_sound(trace, path)
    _replayed(trace, devices)
    _peaks(trace)
    known = trace.facts.get("not_decidable", [])
    trace.facts["not_decidable"] = [code for code in known if code not in NEEDS_MEMORY]


def _entry(event: object) -> Json:
    """An event as a dictionary; a snapshot in JSON may hold lists."""
    if isinstance(event, Mapping):
        return dict(event)
    if not isinstance(event, Sequence) or len(event) < len(ENTRY):
        raise ValueError(f"{event!r} is no event")
    return dict(zip(ENTRY, event, strict=False))


def _frames(snapshot: Json) -> dict[int, Sequence[Json]]:
    """The frames of the blocks that are there at the end, by address."""
    return {
        block["address"]: block.get("frames") or ()
        for segment in snapshot["segments"]
        for block in segment.get("blocks", ())
        if "address" in block
    }


def _start(trace: Trace, snapshot: Snapshot, frames: Mapping[int, Sequence[Json]], lines: _Lines) -> None:
    """What the allocator held when the recording began, as its first actions."""
    device = snapshot.device
    taken, alloc = MEMORY_ACTIONS.index("segment_alloc"), MEMORY_ACTIONS.index("alloc")
    for segment in start_segments(snapshot):
        stream = int(segment["stream"])
        trace.memory.append((taken, device, stream, segment["address"], segment["total_size"], 0, 0, 0))
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                continue
            asked = int(block["requested_size"])
            site = trace.sites.number(lines.site(frames.get(block["address"], ())))
            excess = max(0, int(block["size"]) - asked) << MEMORY_EXCESS
            trace.memory.append((alloc, device, stream, block["address"], asked, 0, site, excess))


def _notes(trace: Trace) -> None:
    """Each request that failed, for the check `out-of-memory`."""
    allocated: dict[int, int] = {}
    reserved: dict[int, int] = {}
    sizes: dict[tuple[int, int], int] = {}
    for action in trace.memory_actions():
        key, device = (action.device, action.address), action.device
        if action.action == "alloc":
            sizes[key] = action.size_bytes + action.excess_bytes
            allocated[device] = allocated.get(device, 0) + sizes[key]
        elif action.action == "free_completed":
            allocated[device] = allocated.get(device, 0) - sizes.pop(key, 0)
        elif action.action in ("segment_alloc", "segment_map"):
            reserved[device] = reserved.get(device, 0) + action.size_bytes
        elif action.action in ("segment_free", "segment_unmap"):
            reserved[device] = reserved.get(device, 0) - action.size_bytes
        elif action.action == "oom":
            detail = {
                "requested_bytes": action.size_bytes,
                "device": device,
                "free_bytes": action.address,  # torch's `device_free`
                "room_bytes": reserved.get(device, 0) + action.address,
                "allocated_bytes": allocated.get(device, 0),
                "reserved_bytes": reserved.get(device, 0),
            }
            trace.remark(Note("out-of-memory", action.site, tuple(detail.items())))


def _room(trace: Trace, device: int) -> None:
    """Places for the facts of a device and of those before it."""
    for name, empty in (("devices", {}), ("gpus", {"name": UNKNOWN_GPU})):
        rows = trace.facts[name]
        rows += [dict(empty) for _ in range(len(rows), device + 1)]


def _replayed(trace: Trace, devices: Sequence[Snapshot]) -> None:
    """Peaks as the allocator has them, which knows how it rounds, and what its settings would have made of an OOM."""
    totals = trace.facts["devices"]
    limits = {
        int(dict(note.detail)["device"]): int(dict(note.detail)["room_bytes"])
        for note in trace.notes
        if note.code == "out-of-memory"
    }
    for one in devices:
        result = Replay(one).run()
        _room(trace, one.device)
        totals[one.device].setdefault("peak_allocated_bytes", result.peak_allocated_bytes)
        totals[one.device].setdefault("peak_reserved_bytes", result.peak_reserved_bytes)
        if one.device in limits:
            tried = [one.settings, *map(parse, SETTINGS)]
            rows = [(setting.text, outcome(one, setting, limits[one.device])) for setting in tried]
            trace.facts.setdefault("replays", []).extend(
                {"device": one.device, "setting": text, "peak_reserved_bytes": row.peak_reserved_bytes,
                 "out_of_memory": row.out_of_memory}
                for text, row in rows
            )  # fmt: skip


def _row(trace: Trace, event: Json, device: int, begin_us: int, lines: _Lines) -> None:
    if event["action"] not in MEMORY_ACTIONS:
        return
    address = int(event["addr"] if "addr" in event else event["device_free"])
    site = trace.sites.number(lines.site(event.get("frames") or ()))
    time_ns = (int(event.get("time_us", begin_us)) - begin_us) * 1000
    action = MEMORY_ACTIONS.index(event["action"])
    trace.memory.append((action, device, int(event.get("stream", 0)), address, int(event["size"]), time_ns, site, 0))


class _Lines:
    """The program's lines in stacks that another machine recorded, its files named as briefly as they differ."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._folder = os.getcwd() + os.sep

    def site(self, frames: Sequence[Json]) -> Site:
        """The innermost line of the program, its callers behind it."""
        lines = [(str(one["filename"]), int(one["line"]), str(one["name"])) for one in frames]
        for number, (file, line, function) in enumerate(lines):
            if file.endswith(".py") and not any(part in file.replace("\\", "/") for part in LIBRARY):
                return Site(self._name(file), line, function, tuple(lines[number + 1 :]))
        return UNKNOWN_SITE

    def _name(self, file: str) -> str:
        """Relative where the file is below the working directory, else the last part, or as many as tell it apart."""
        if file not in self._names:
            below = file.removeprefix(self._folder)
            parts = re.split(r"[/\\]", below)
            first = len(parts) - 1 if PurePosixPath(below).is_absolute() or PureWindowsPath(below).drive else 0
            taken = set(self._names.values())
            names = ("/".join(parts[start:]) for start in range(first, -1, -1))
            self._names[file] = next((name for name in names if name not in taken), file)
        return self._names[file]


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
    devices = trace.facts["devices"]
    for device, (allocated, reserved) in peaks.items():
        _room(trace, device)
        devices[device].setdefault("peak_allocated_bytes", allocated)
        devices[device].setdefault("peak_reserved_bytes", reserved)
