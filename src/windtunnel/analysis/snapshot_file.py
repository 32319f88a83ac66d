"""Memory snapshots of PyTorch as files: `torch.cuda.memory._dump_snapshot`'s pickle, or the same data as JSON.

A pickle is read by an unpickler that admits no classes and no functions, so reading a foreign file runs nothing. The
JSON form holds the same keys; an event may be the list [action, address, size, stream] instead of a dictionary.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from windtunnel import foreign
from windtunnel.errors import FileFormatError
from windtunnel.machine.memory.blocks import DEFAULT_POOL, PoolId
from windtunnel.machine.memory.settings import MIB, UNLIMITED, Settings, parse
from windtunnel.trace.plain import Json

MOST_MEMORY = 1 << 40
"""More memory than any GPU has: a larger size means that the file is wrong."""
MOST_DEVICES = 120
"""How many GPUs PyTorch can have (`C10_COMPILE_TIME_MAX_GPUS`)."""


class Event(NamedTuple):
    """One action of a recorded allocator. Sizes are bytes; `pool_id` is None where the recording did not keep it."""

    action: str
    address: int
    size: int
    stream: int
    pool_id: PoolId | None = None


PLACED = frozenset(("alloc", "segment_alloc", "segment_free", "segment_map", "segment_unmap"))
"""Actions on memory of some size."""


class Snapshot(NamedTuple):
    """One device's part of a recorded snapshot."""

    device: int
    settings: Settings
    events: list[Event]
    segments: list[Json]


def read(path: str | Path) -> list[Snapshot]:
    """The devices of a snapshot file that hold segments or events. Raises FileFormatError when it is none."""
    path = Path(path)
    try:
        data = foreign.read_bytes(path)
    except OSError as error:
        names = [found.name for found in path.parent.glob("*")] if isinstance(error, FileNotFoundError) else []
        near = difflib.get_close_matches(path.name, names, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.{hint}") from None
    foreign.refuse_program(path)
    return from_dict(decode(data, path), path)


def decode(data: bytes, path: str | Path) -> object:
    """What a snapshot's bytes hold, a pickle or JSON, packed or not; raises FileFormatError for others."""
    data = foreign.unpacked(data, path)
    found = foreign.from_json(data, path) if data[:1] == b"{" else foreign.from_pickle(data, path)
    traces = found.get("device_traces") if isinstance(found, Mapping) else None
    if isinstance(traces, Sequence) and len(traces) > MOST_DEVICES:
        raise FileFormatError(f"{path} has the histories of {len(traces):,} devices, more than PyTorch can have.")
    return found


def from_dict(data: object, path: str | Path = "the snapshot") -> list[Snapshot]:
    """The devices of a snapshot that is already in memory, as `torch.cuda.memory._snapshot()` returns it."""
    if not isinstance(data, Mapping) or not isinstance(data.get("segments"), Sequence):
        raise FileFormatError(
            f"{path} has no list of segments, so it is not a memory snapshot. "
            "Make one with torch.cuda.memory._dump_snapshot."
        )
    try:
        settings = _settings(data.get("allocator_settings") or {}, path)
        segments = [_segment(entry) for entry in data["segments"]]
        traces = [[_event(entry) for entry in trace] for trace in data.get("device_traces") or []]
    except foreign.UNFIT as error:
        reason = error if isinstance(error, ValueError) else repr(error)
        raise FileFormatError(f"{path} has an entry that an allocator does not write: {reason}.") from None
    held: Counter[int] = Counter()
    for segment in segments:
        held[segment["device"]] += segment["total_size"]
    if held and max(held.values()) > MOST_MEMORY:
        raise FileFormatError(f"{path} holds {max(held.values()) >> 30:,} GiB on one device, more than any GPU has.")
    devices = {segment["device"] for segment in segments} | {index for index, trace in enumerate(traces) if trace}
    return [
        Snapshot(
            device,
            settings,
            traces[device] if device < len(traces) else [],
            [segment for segment in segments if segment["device"] == device],
        )
        for device in sorted(devices)
    ]


def _segment(entry: Json) -> Json:
    """A recorded segment with all keys that the replay reads; older snapshots lack pools, requests and addresses."""
    pool = entry.get("segment_pool_id", DEFAULT_POOL)
    address = int(entry["address"])
    _plausible(int(entry["total_size"]), address)
    blocks: list[Json] = []
    for block in entry["blocks"]:
        size = int(block["size"])
        requested = int(block.get("requested_size", size))
        blocks.append({"address": address, "size": size, "requested_size": requested, "state": str(block["state"])})
        address += size
    smallest = min((int(block["size"]) for block in blocks), default=1)
    if smallest <= 0 or address != int(entry["address"]) + int(entry["total_size"]):
        raise ValueError(f"the blocks of the segment at {int(entry['address']):#x} do not fill it")
    return {
        "device": int(entry["device"]),
        "address": int(entry["address"]),
        "total_size": int(entry["total_size"]),
        "stream": int(entry.get("stream", 0)),
        "segment_type": str(entry["segment_type"]),
        "segment_pool_id": (int(pool[0]), int(pool[1])),
        "is_expandable": bool(entry.get("is_expandable", False)),
        "blocks": blocks,
    }


def _event(entry: Json | Sequence[Any]) -> Event:
    if not isinstance(entry, Mapping):
        action, address, size, stream = entry[:4]
        event = Event(str(action), int(address), int(size), int(stream))
    else:
        pool = entry.get("pool_id")
        address = entry["addr"] if "addr" in entry else entry["device_free"]
        pool_id = (int(pool[0]), int(pool[1])) if pool is not None else None
        event = Event(str(entry["action"]), int(address), int(entry["size"]), int(entry["stream"]), pool_id)
    if event.action in PLACED:
        _plausible(event.size, event.address)
    return event


def _plausible(size: int, address: int) -> None:
    """Refuse sizes and addresses that no allocator has; a replay would count their pages one by one."""
    if not (0 < size <= MOST_MEMORY and address >= 0):
        raise ValueError(f"{size} bytes at {address:#x}")


def _settings(recorded: Json, path: str | Path) -> Settings:
    """The settings that the recorded allocator ran under, as far as the snapshot tells."""
    text = str(recorded.get("PYTORCH_CUDA_ALLOC_CONF") or "")
    try:
        settings = parse(text)
    except (ValueError, IndexError, RuntimeError) as error:
        raise FileFormatError(f"{path} was recorded under settings that cannot be read: {text!r}: {error}.") from None
    limit = int(recorded.get("max_split_size", -1))
    divisions = recorded.get("roundup_power2_divisions") or {}
    return Settings(
        max_split_size=limit if limit > 0 else UNLIMITED,
        max_non_split_rounding_size=settings.max_non_split_rounding_size,
        large_segment_size=settings.large_segment_size,
        garbage_collection_threshold=float(recorded.get("garbage_collection_threshold", 0.0)),
        roundup_power2_divisions=tuple(int(divisions.get(str(1 << index), 0)) for index in range(16)),
        expandable_segments=bool(recorded.get("expandable_segments", settings.expandable_segments)),
        text=text,
    )


def small_pool(segment_size: int) -> bool:
    """Whether a `cudaMalloc` of that size was for the small pool: only its segments are 2 MiB."""
    return segment_size == 2 * MIB
