"""How a record looks in Kineto's format, which `torch.profiler` writes and Perfetto, chrome://tracing and HTA read.

The names, categories and arguments are Kineto's own: `cuda_runtime` calls on the host's threads, `kernel` and
`gpu_memcpy` on the streams, and arrows of category `ac2g` from a call to its kernel. Times in events are microseconds.
"""

from __future__ import annotations

from functools import cache

from windtunnel.trace.operation import Kind
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Record

DEFAULT_STREAM = 7  # the number that CUPTI gives the default stream, and tools look for
SHORTEST_CALL_NS = 1_000
RUNTIME_CALL_NS = 3_000
"""A call into CUDA as part of its operator, at most half of it: published profiles show 3 to 5 µs a launch. (Holistic
Trace Analysis leaves calls of less than 2 µs out of its critical path.)"""
ON_DEVICE = frozenset({Kind.KERNEL, Kind.COPY, Kind.COLLECTIVE})
RUNTIME = {
    Kind.KERNEL: "cudaLaunchKernel",
    Kind.COLLECTIVE: "cudaLaunchKernel",
    Kind.COPY: "cudaMemcpyAsync",
    Kind.EVENT_RECORD: "cudaEventRecord",
    Kind.EVENT_WAIT: "cudaStreamWaitEvent",
}
SYNCHRONIZATIONS = frozenset({Kind.SYNCHRONIZE, Kind.EVENT_WAIT})
PRODUCTS = frozenset(
    f"aten::{name}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "vdot", "matmul", "linear", "_int_mm",
                 "_scaled_mm", "addmm_", "baddbmm_", "addmv_", "_addmm_activation", "_grouped_mm", "_scaled_grouped_mm")
)  # fmt: skip
"""Operators whose kernels are matrix products, which tools know by "gemm" in the name."""

Event = Json


def device_properties(index: int, gpu: Json) -> Json:
    """One entry of "deviceProperties", from a trace's fact about a GPU."""
    capability = gpu.get("compute_capability") or [0, 0]
    return {
        "id": index,
        "name": gpu.get("name", ""),
        "totalGlobalMem": gpu.get("memory_bytes", 0),
        "computeMajor": capability[0],
        "computeMinor": capability[1],
        "numSms": gpu.get("sm_count", 0),
    }


def process_name(device: int, name: str, stamp: str) -> list[Event]:
    """What names the lanes of one device; `stamp` says where its times come from."""
    return [
        meta("process_name", device, 0, name="python"),
        meta("process_labels", device, 0, labels=f"GPU {device} {name} ({stamp})"),
        meta("process_sort_index", device, 0, sort_index=5_000_000 + device),
    ]


def stream_name(device: int, stream: int) -> Event:
    """What names the lane of one stream."""
    return meta("thread_name", device, stream_number(stream), name=f"stream {stream_number(stream)}")


def meta(name: str, pid: int, tid: int, /, **args: object) -> Event:
    """An event that describes a lane."""
    return {"ph": "M", "name": name, "ts": 0, "pid": pid, "tid": tid, "args": args}


def complete(category: str, name: str, pid: int, tid: int, start_ns: int, end_ns: int, args: Json) -> Event:
    """An event with a beginning and an end."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start_ns / 1000,
        "dur": max(0, end_ns - start_ns) / 1000,
        "args": args,
    }


def arrow(phase: str, number: int, pid: int, tid: int, time_ns: int) -> Event:
    """One end of an arrow from a call to its work on the device: phase "s" leaves, "f" arrives."""
    found = {"ph": phase, "id": number, "pid": pid, "tid": tid, "ts": time_ns / 1000, "cat": "ac2g", "name": "ac2g"}
    return found | {"bp": "e"} if phase == "f" else found


def runtime_start(record: Record, start_ns: int) -> int:
    """When the call into CUDA began, as the last part of an operator that began at `start_ns`."""
    return record.issued_ns - min(RUNTIME_CALL_NS, max(0, record.issued_ns - start_ns) // 2)


def wait_name(record: Record) -> str:
    """The runtime's function in which the host waited."""
    name = record.signature.name
    return name if name.startswith("cuda") and " " not in name else "cudaStreamSynchronize"


def work_category(record: Record) -> str:
    """The category of a record on a device: "kernel" or "gpu_memcpy"."""
    return "gpu_memcpy" if record.kind == Kind.COPY else "kernel"


def work_name(record: Record) -> str:
    """The name of a record on a device: the operator's, in a word by which tools know the kind of kernel."""
    name = record.signature.name
    if record.kind == Kind.COLLECTIVE:
        return kernel_name(name)
    if record.kind == Kind.COPY or not name.startswith("aten::"):
        return name
    if name.startswith("aten::_foreach_"):
        return f"multi_tensor_apply_kernel<{name}>"
    return f"gemm_kernel<{name}>" if name in PRODUCTS else f"kernel<{name}>"


def synchronization(record: Record, number: int, external: int) -> Event:
    """What was waited for, as CUPTI says it of a context, a stream or an event."""
    if record.kind == Kind.EVENT_WAIT:
        name = "Stream Wait Event"
    else:
        call = wait_name(record)
        name = "Context Sync" if "Device" in call else "Event Sync" if "Event" in call else "Stream Sync"
    device, stream = record.lane.device, stream_number(record.lane.stream) if record.lane.stream >= 0 else -1
    args = {"External id": external, "correlation": number, "device": device, "context": 1, "stream": stream}
    return complete("cuda_sync", name, max(device, 0), stream, record.start_ns, record.end_ns, args)


def work_arguments(record: Record, number: int, external: int) -> Json:
    """The arguments of a record on a device; `number` is its correlation, `external` the operator's."""
    args: Json = {
        "External id": external,
        "correlation": number,
        "device": record.lane.device,
        "context": 1,
        "stream": stream_number(record.lane.stream),
    }
    if record.kind == Kind.COPY:
        args["bytes"] = record.value
        args["memory bandwidth (GB/s)"] = round(record.value / max(1, record.duration_ns), 3)
    elif record.kind == Kind.COLLECTIVE:
        args |= {"Collective name": record.signature.name, "In msg nelems": record.value, "dtype": "Byte"}
    return args


def work(record: Record, number: int, external: int) -> list[Event]:
    """The kernel or copy on its stream, at the end of an arrow."""
    device, stream = record.lane.device, stream_number(record.lane.stream)
    args = work_arguments(record, number, external)
    span = record.start_ns, record.end_ns
    return [
        complete(work_category(record), work_name(record), device, stream, *span, args),
        arrow("f", number, device, stream, record.start_ns),
    ]


def stream_number(stream: int) -> int:
    """The number that CUPTI gives a stream, for its index within a device."""
    return DEFAULT_STREAM + stream


def kernel_name(collective: str) -> str:
    """The kernel's name as NCCL's begin, by which tools know communication: "ncclDevKernel_AllReduce"."""
    words = collective.rpartition("::")[2].removeprefix("nccl").strip("_").replace("-", "_").split("_")
    return "ncclDevKernel_" + "".join(word[:1].upper() + word[1:] for word in words)


@cache
def copy_name(source: int, destination: int, pinned: bool) -> str:
    """Kineto's name of a transfer between two devices (-1 is the host)."""
    memory = "Pinned" if pinned else "Pageable"
    if source < 0:
        return f"Memcpy HtoD ({memory} -> Device)"
    if destination < 0:
        return f"Memcpy DtoH (Device -> {memory})"
    return "Memcpy DtoD (Device -> Device)" if source == destination else "Memcpy PtoP (Device -> Device)"
