"""The run as a Kineto trace, which Perfetto, chrome://tracing and Holistic Trace Analysis open.

The names, categories and arguments are those that `torch.profiler` writes: `cpu_op` on the host's threads with
`cuda_runtime` calls in them, `kernel` and `gpu_memcpy` on the streams, and arrows of category `ac2g` from a call to its
kernel.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from windtunnel.trace import kineto
from windtunnel.trace.finding import Finding
from windtunnel.trace.kineto import ON_DEVICE, RUNTIME, SHORTEST_CALL_NS, Event, complete, meta
from windtunnel.trace.operation import Kind
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Record, Trace

SUFFIX = ".kineto.json"
PER_PROCESS = True  # one file a process: its readers expect one rank in each
HOST_PID = 4_000_000  # above any GPU's index, which is the process number that Kineto gives a GPU
LONGEST_CALL_NS = 50_000  # of the host's time between two rows, what one call may have taken
NO_STREAM = -1  # where CUPTI puts waits that are of no one stream
SYNC_KINDS = {"cudaDeviceSynchronize": "Context Sync", "cudaEventSynchronize": "Event Sync"}


def render(trace: Trace, findings: Sequence[Finding]) -> str:
    """The trace as JSON text. Findings have no place in this format."""
    events = ",\n".join(json.dumps(event, separators=(",", ":")) for event in _events(trace))
    head = json.dumps(_head(trace), indent=1)
    return f'{head[:-2]},\n "traceEvents": [\n{events}\n]}}\n'


def _head(trace: Trace) -> Json:
    facts = trace.facts
    version = facts.get("cuda_version") or [0, 0]
    number = version[0] * 1000 + version[1] * 10
    head: Json = {
        "schemaVersion": 1,
        "deviceProperties": [kineto.device_properties(index, gpu) for index, gpu in enumerate(facts.get("gpus", []))],
        "cuda_runtime_version": number,
        "cuda_driver_version": number,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "record_shapes": 1,
        "traceName": str(facts.get("program", "")),
        "windtunnel": {"source": facts.get("source", "modelled"), "band": facts.get("band")},
    }
    world = facts.get("world_size")
    if world:
        head["distributedInfo"] = {
            "backend": "nccl",
            "rank": facts.get("rank", 0),
            "world_size": world,
            "pg_count": 1,
            "pg_config": [],
        }
    return head


def _events(trace: Trace) -> Iterator[Event]:
    yield from _names(trace)
    hosts: dict[int, int] = {}  # thread -> when its latest call or other work ended
    recorded: dict[int, tuple[int, Record]] = {}  # event -> its latest record, with the number of that call
    spans: dict[tuple[int, int], tuple[int, int]] = {}  # (device, stream) -> from when to when it worked for this step
    step_start_ns = 0
    for number, record in enumerate(trace, 1):
        thread = record.lane.thread
        if record.kind in RUNTIME:
            start_ns = _call_start(record, hosts.get(thread, 0))
            yield from _call(record, number, start_ns)
            if record.kind in ON_DEVICE:
                yield from kineto.work(record, number, number)
                lane = record.lane.device, kineto.stream_number(record.lane.stream)
                first_ns, last_ns = spans.get(lane, (record.start_ns, record.end_ns))
                spans[lane] = min(first_ns, record.start_ns), max(last_ns, record.end_ns)
            elif record.kind == Kind.EVENT_RECORD:
                recorded[record.value] = number, record
            elif record.value in recorded:
                yield _stream_wait(record, number, *recorded[record.value])
            hosts[thread] = record.issued_ns
        elif record.kind == Kind.SYNCHRONIZE:
            yield from _wait(record, number)
            hosts[thread] = record.end_ns
        elif record.kind == Kind.STEP:
            name = f"ProfilerStep#{record.value}"
            yield complete("user_annotation", name, HOST_PID, thread, step_start_ns, record.issued_ns, _stack(record))
            step_start_ns = hosts[thread] = record.issued_ns
            for (device, stream), span in spans.items():
                yield complete("gpu_user_annotation", name, device, stream, *span, {"External id": number})
            spans.clear()
        elif record.kind == Kind.HOST:
            start_ns, end_ns = record.start_ns, max(record.end_ns, record.start_ns + record.value)
            name = record.signature.name or "host"
            yield complete("user_annotation", name, HOST_PID, thread, start_ns, end_ns, {"line": str(record.site)})
            hosts[thread] = end_ns
    yield from _memory(trace)


def _names(trace: Trace) -> Iterator[Event]:
    stamp = "EMULATED" if trace.facts.get("source", "modelled") == "modelled" else "measured"
    gpus = trace.facts.get("gpus", [])
    yield meta("process_name", HOST_PID, 0, name="python")
    yield meta("process_labels", HOST_PID, 0, labels=f"CPU ({stamp})")
    yield meta("process_sort_index", HOST_PID, 0, sort_index=-1)
    for device in sorted({lane.device for lane in trace.lanes if lane.device >= 0}):
        name = gpus[device].get("name", "") if device < len(gpus) else ""
        yield from kineto.process_name(device, name, stamp)
    for thread in sorted({lane.thread for lane in trace.lanes}):
        yield meta("thread_name", HOST_PID, thread, name=f"thread {thread} (python)")
    for device, stream in sorted({(lane.device, lane.stream) for lane in trace.lanes if lane.device >= 0}):
        yield kineto.stream_name(device, stream)
    for device in sorted({lane.device for lane in trace.lanes if lane.device >= 0}):
        yield meta("thread_name", device, NO_STREAM, name="host waits")


def _call_start(record: Record, host_ns: int) -> int:
    """When the call began: when the thread's last one ended, but no longer ago than a call takes."""
    return min(max(host_ns, record.issued_ns - LONGEST_CALL_NS), record.issued_ns - SHORTEST_CALL_NS)


def _call(record: Record, number: int, start_ns: int) -> Iterator[Event]:
    """The framework's operator and, as its last part, the call into CUDA."""
    thread, issued_ns = record.lane.thread, record.issued_ns
    runtime_ns = kineto.runtime_start(record, start_ns)
    if record.kind in ON_DEVICE:
        name = "aten::copy_" if record.kind == Kind.COPY else record.signature.name
        args: Json = {"External id": number, **_stack(record)}
        shapes = record.signature.shapes[: record.signature.inputs or None]
        if shapes:
            args["Input Dims"] = [list(shape) for shape in shapes]
            args["Input type"] = list(record.signature.dtypes[: len(shapes)])
        yield complete("cpu_op", name, HOST_PID, thread, start_ns, issued_ns, args)
    args = {"External id": number, "correlation": number}
    yield complete("cuda_runtime", RUNTIME[record.kind], HOST_PID, thread, runtime_ns, issued_ns, args)
    if record.kind in ON_DEVICE:
        yield kineto.arrow("s", number, HOST_PID, thread, runtime_ns)


def _stack(record: Record) -> dict[str, str]:
    return {"Call stack": str(record.site)} if record.site.file else {}


def _wait(record: Record, number: int) -> Iterator[Event]:
    name = record.signature.name
    runtime = kineto.wait_name(record)
    thread = record.lane.thread
    args: Json = {"External id": number, **_stack(record)}
    if runtime != name:
        outer = "aten::copy_" if name.startswith("cudaMemcpy") else name
        yield complete("cpu_op", outer, HOST_PID, thread, record.start_ns, record.end_ns, args)
        args = {"External id": number}
    args["correlation"] = number  # on the call alone: readers join it with what it did on the device
    yield complete("cuda_runtime", runtime, HOST_PID, thread, record.start_ns, record.end_ns, args)
    if record.lane.device >= 0:
        device, kind = record.lane.device, SYNC_KINDS.get(runtime, "Stream Sync")
        stream = NO_STREAM if runtime in SYNC_KINDS else kineto.stream_number(record.lane.stream)
        args = {"cuda_sync_kind": kind, "correlation": number, "device": device, "stream": stream}
        # On a lane of their own: on the stream's, where Kineto has them, they would partly overlap its kernels.
        yield complete("cuda_sync", kind, device, NO_STREAM, record.start_ns, record.end_ns, args)


def _stream_wait(record: Record, number: int, recording: int, recorded: Record) -> Event:
    """What CUPTI says of a `cudaStreamWaitEvent`: which stream waits, and for the record of which call."""
    device, stream = record.lane.device, kineto.stream_number(record.lane.stream)
    args = {
        "cuda_sync_kind": "Stream Wait Event",
        "correlation": number,
        "device": device,
        "stream": stream,
        "wait_on_stream": kineto.stream_number(recorded.lane.stream),
        "wait_on_cuda_event_record_corr_id": recording,
        "wait_on_cuda_event_id": record.value,
    }
    return complete("cuda_sync", "Stream Wait Event", device, stream, record.issued_ns, record.issued_ns, args)


def _memory(trace: Trace) -> Iterator[Event]:
    """The allocators' totals after each action, as the profiler's `[memory]` events."""
    allocated: dict[int, int] = {}
    reserved: dict[int, int] = {}
    sizes: dict[tuple[int, int], int] = {}  # of the blocks that are allocated
    signs = {"alloc": 1, "free_completed": -1, "segment_alloc": 1, "segment_map": 1, "segment_free": -1}
    signs["segment_unmap"] = -1
    for action in trace.memory_actions():
        sign = signs.get(action.action)
        if sign is None:
            continue
        if action.action == "alloc":
            sizes[action.device, action.address] = action.size_bytes + action.excess_bytes
        size = action.size_bytes
        if action.action in ("alloc", "free_completed"):
            size = sizes.get((action.device, action.address), size)
        totals = reserved if action.action.startswith("segment") else allocated
        totals[action.device] = totals.get(action.device, 0) + sign * size
        if action.action.startswith("segment"):
            continue  # the profiler hears of blocks only
        yield {
            "ph": "i",
            "s": "t",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": HOST_PID,
            "tid": 0,
            "ts": action.time_ns / 1000,
            "args": {
                "Total Reserved": reserved.get(action.device, 0),
                "Total Allocated": allocated.get(action.device, 0),
                "Bytes": sign * size,
                "Addr": action.address,
                "Device Id": action.device,
                "Device Type": 1,
            },
        }
