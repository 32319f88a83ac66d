"""What a Kineto trace says of the machine: devices, versions, ranks, memory; and what cannot be judged from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from windtunnel.errors import UnknownGpuError
from windtunnel.gpus import find
from windtunnel.measure.kineto_hosts import Event
from windtunnel.trace.operation import UNKNOWN_GPU
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import MEMORY_ACTIONS, Trace

NEEDS_ACCESSES = ("unsynchronized-access", "freed-in-use", "stale-read", "early-overwrite", "cuda-early-use")
NEEDS_CONTENTS = ("repeated-copy", "copy-back-and-forth")
NEEDS_PROGRAM = (
    "assumed-value",
    "availability-without-count",
    "context-on-other-gpu",
    "created-on-cpu",
    "current-device-elsewhere",
    "data-parallel",
    "device-assert",
    "hard-coded-device",
    "late-visible-devices",
    "not-modelled",
    "out-of-memory",
    "same-data-on-ranks",
    "shared-gpu",
    "unfused-optimizer",
    "wrong-timing",
)
NEEDS_MEMORY = ("fragmentation", "growing-memory", "near-full-memory")
UNDECIDABLE = (*NEEDS_ACCESSES, *NEEDS_CONTENTS, *NEEDS_PROGRAM, *NEEDS_MEMORY)
CUDA = 1  # c10::DeviceType, as "Device Type" of a memory event
ALLOC, FREE = MEMORY_ACTIONS.index("alloc"), MEMORY_ACTIONS.index("free_completed")


def facts(head: Json, events: Iterable[Event], trace: Trace) -> Json:
    """The facts of a trace that was read from a profile."""
    ours = head.get("windtunnel") or {}
    group = head.get("distributedInfo") or {}
    seen = 1 + max((lane.device for lane in trace.lanes), default=-1)
    gpus = [_gpu(properties) for properties in head.get("deviceProperties") or []]
    if not ours:
        gpus = gpus[: max(seen, 1)]  # the profiler lists the machine's, whether they were used or not
    gpus = gpus or [{"name": UNKNOWN_GPU} for _ in range(seen)]
    found: Json = {
        "source": str(ours.get("source", "measured")),
        "band": ours.get("band"),
        "gpus": gpus,
        "devices": [{"memory_bytes": gpu.get("memory_bytes")} for gpu in gpus],
        "program": str(head.get("traceName", "")).rpartition("/")[2],
        "rank": int(group.get("rank", 0)),
        "recorded_by": "torch.profiler",
        "not_decidable": sorted(UNDECIDABLE),
    }
    if group.get("world_size"):
        found["world_size"] = int(group["world_size"])
    version = head.get("cuda_runtime_version")
    if version:
        found["cuda_version"] = [int(version) // 1000, int(version) % 1000 // 10]
    return found


def _gpu(properties: Json) -> Json:
    """A device as a session describes it; peaks and bandwidth are the catalogue's, where it knows the name."""
    name = str(properties.get("name", UNKNOWN_GPU))
    described: Json = {
        "name": name,
        "memory_bytes": int(properties.get("totalGlobalMem", 0)),
        "compute_capability": [int(properties.get("computeMajor", 0)), int(properties.get("computeMinor", 0))],
        "sm_count": int(properties.get("numSms", 0)),
    }
    try:
        known = find(name)
    except UnknownGpuError:
        return described
    described["peak_flops"] = dict(known.peak_flops)
    described["memory_bandwidth_bytes_per_s"] = known.memory_bandwidth_bytes_per_s
    return described


def memory(trace: Trace, events: Iterable[Event], ns: Callable[[float], int]) -> None:
    """The profiler's `[memory]` events (`profile_memory=True`) as the allocators' history, and the devices' peaks."""
    peaks: dict[int, list[int]] = {}
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: float(e["ts"])):
        arguments = event.get("args") or {}
        if arguments.get("Device Type") != CUDA:
            continue
        device, size = int(arguments.get("Device Id", 0)), int(arguments.get("Bytes", 0))
        row = (ALLOC if size > 0 else FREE, device, 0, int(arguments.get("Addr", 0)), abs(size), ns(float(event["ts"])))
        trace.memory.append((*row, 0, 0))
        peak = peaks.setdefault(device, [0, 0])
        peak[0] = max(peak[0], int(arguments.get("Total Allocated", 0)))
        peak[1] = max(peak[1], int(arguments.get("Total Reserved", 0)))
    devices = trace.facts["devices"]
    for device, (allocated, reserved) in peaks.items():
        if device < len(devices):
            devices[device] |= {"peak_allocated_bytes": allocated, "peak_reserved_bytes": reserved}
    if peaks:
        trace.facts["not_decidable"] = [code for code in trace.facts["not_decidable"] if code not in NEEDS_MEMORY]
