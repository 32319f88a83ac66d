"""The allocators' history as a memory snapshot, which https://pytorch.org/memory_viz and torch's own tools read.

The format is that of `torch.cuda.memory._snapshot()`: `device_traces` holds each device's actions, `segments` what the
allocator held at the end. Its readers ignore `windtunnel`, by which `windtunnel report` knows an emulated recording.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from windtunnel.errors import UsageError
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Site
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import MemoryAction, Trace, origin

SUFFIX = ".snapshot.pickle"
PER_PROCESS = True  # one file a process: its readers expect one rank in each
HISTORY = True  # made of the allocators' history, which a run keeps from its start for it
SMALL_SEGMENT_BYTES = 2 << 20  # the allocator's small pool takes segments of this size

Frames = list[Json]


def render(trace: Trace, findings: Sequence[Finding]) -> bytes:
    """The snapshot, pickled: plain dicts and lists.

    Raises:
        UsageError: the trace holds no history of allocations.
    """
    return pickle.dumps(as_dict(trace), protocol=4)


def as_dict(trace: Trace) -> Json:
    """The snapshot as plain dicts and lists; raises UsageError when the trace holds no history."""
    if not len(trace.memory):
        raise UsageError(
            "this run kept no history of its allocations, so there is no memory snapshot to write; run the program "
            "again with --memory-history (`windtunnel run --report out.snapshot.pickle` does so by itself)"
        )
    devices = max(len(trace.facts.get("gpus", [])), 1 + max(action.device for action in trace.memory_actions()))
    traces: list[list[Json]] = [[] for _ in range(devices)]
    actions = list(trace.memory_actions())
    pools = trace.facts.get("memory_pools")  # as PyTorch writes it from 2.12 on
    named = {row: (first, second) for row, first, second in pools or ()}
    for row, action in enumerate(actions):
        pool = {} if pools is None else {"pool_id": named.get(row, (0, 0))}
        traces[action.device].append(_event(action) | pool)
    known = trace.facts.get("memory_segments")
    return {
        "segments": _segments(actions) if known is None else [_known(segment) for segment in known],
        "device_traces": traces,
        "allocator_settings": trace.facts.get("allocator_settings", {}),
        "external_annotations": [],
        "windtunnel": origin(trace.facts),
    }


def _known(segment: Json) -> Json:
    """A segment as the allocator described it at the end; what was saved as JSON has lost its tuple."""
    return {**segment, "segment_pool_id": tuple(segment["segment_pool_id"])}


def _event(action: MemoryAction) -> Json:
    return {
        "action": action.action,
        "device_free" if action.action == "oom" else "addr": action.address,
        "size": action.size_bytes,
        "stream": action.stream,
        "time_us": action.time_ns // 1000,
        "frames": _frames(action.site),
    }


def _frames(site: Site) -> Frames:
    stack = ((site.file, site.line, site.function), *site.stack)
    return [{"filename": file, "line": line, "name": name} for file, line, name in stack if file]


def _segments(actions: Sequence[MemoryAction]) -> list[Json]:
    """What is left at the end: segments with their blocks, by address."""
    segments: dict[tuple[int, int], MemoryAction] = {}
    blocks: dict[tuple[int, int], tuple[MemoryAction, str]] = {}
    for action in actions:
        key = action.device, action.address
        if action.action in ("segment_alloc", "segment_map"):
            segments[key] = action
        elif action.action in ("segment_free", "segment_unmap"):
            segments.pop(key, None)
        elif action.action == "alloc":
            blocks[key] = action, "active_allocated"
        elif action.action == "free_requested" and key in blocks:
            blocks[key] = blocks[key][0], "active_pending_free"
        elif action.action == "free_completed":
            blocks.pop(key, None)
    ordered = sorted(blocks.items())
    return [_segment(segment, ordered) for _, segment in sorted(segments.items())]


def _segment(segment: MemoryAction, blocks: Sequence[tuple[tuple[int, int], tuple[MemoryAction, str]]]) -> Json:
    end = segment.address + segment.size_bytes
    inside = [
        block for (device, address), block in blocks if device == segment.device and segment.address <= address < end
    ]
    rows: list[Json] = []
    position = segment.address
    for action, state in inside:
        if action.address > position:
            rows.append(_block(position, action.address - position, "inactive", []))
        size = action.size_bytes + action.excess_bytes
        rows.append(_block(action.address, size, state, _frames(action.site)) | {"requested_size": action.size_bytes})
        position = action.address + size
    if position < end:
        rows.append(_block(position, end - position, "inactive", []))
    sizes = [(action.size_bytes + action.excess_bytes, state) for action, state in inside]
    allocated = sum(size for size, state in sizes if state == "active_allocated")
    active = sum(size for size, _ in sizes)
    return {
        "device": segment.device,
        "address": segment.address,
        "total_size": segment.size_bytes,
        "allocated_size": allocated,
        "active_size": active,
        "requested_size": sum(action.size_bytes for action, state in inside if state == "active_allocated"),
        "stream": segment.stream,
        "segment_type": "small" if segment.size_bytes <= SMALL_SEGMENT_BYTES else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": segment.action == "segment_map",
        "frames": _frames(segment.site),
        "blocks": rows,
    }


def _block(address: int, size_bytes: int, state: str, frames: Frames) -> dict[str, object]:
    return {"address": address, "size": size_bytes, "requested_size": size_bytes, "state": state, "frames": frames}
