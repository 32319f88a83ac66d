"""`export_chrome_trace`: what PyTorch's profiler writes of the host, in modelled time, and the devices' events."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING

from windtunnel.seam.torch.profiler.events import MEMORY, NOWHERE, DeviceEvent, Link, MemoryEvent
from windtunnel.seam.torch.profiler.result import Result, Totals
from windtunnel.seam.torch.profiler.times import Taken
from windtunnel.trace import kineto
from windtunnel.trace.kineto import Event
from windtunnel.trace.operation import Kind
from windtunnel.trace.trace import Record

if TYPE_CHECKING:
    from torch._C._autograd import _ProfilerResult


def save(result: Result, stock: _ProfilerResult, path: str) -> None:
    """Write one window to `path`; raises OSError when that cannot be done."""
    with tempfile.TemporaryDirectory() as folder:
        name = os.path.join(folder, "host.json")
        stock.save(name)
        with open(name, encoding="utf-8", errors="replace") as file:
            document = json.load(file, parse_float=Exact)
    writer = Writer(result, int(document.get("baseTimeNanoseconds", 0)))
    events = list(writer.host(document.pop("traceEvents")))
    at = next((i for i, event in enumerate(events) if event.get("cat") == "Trace"), len(events))
    events[at:at] = [*writer.memory(), *(writer.devices() if result.recording.cuda else ())]
    facts = result.recording.state.machine.trace.facts
    document["deviceProperties"] = [kineto.device_properties(i, gpu) for i, gpu in enumerate(facts["gpus"])]
    document["traceName"] = path
    document["windtunnel"] = {"source": "modelled"}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({**document, "traceEvents": events}, file, separators=(",", ":"))


class Exact(float):
    """A number that knows its text: months in µs, to the ns, are more digits than arithmetic with floats keeps."""

    text: str

    def __new__(cls, text: str) -> Exact:
        made = super().__new__(cls, text)
        made.text = text
        return made


class Writer:
    """One window's events as JSON; `base_ns` is the moment from which the file counts."""

    def __init__(self, result: Result, base_ns: int) -> None:
        self.result = result
        self.base_ns = base_ns
        self.pid = os.getpid()
        self.threads: dict[int, int] = {}  # the system's number of a thread -> the profiler's
        self.totals = Totals(result.recording)

    def real(self, event: Event) -> int:
        """When an event of the file began, in the profiler's ns."""
        moment = event["ts"]
        return int(Decimal(moment.text if isinstance(moment, Exact) else moment) * 1000) + self.base_ns

    def host(self, events: list[Event]) -> Iterator[Event]:
        """The host's events, moved, without the emulation's own."""
        numbers = {e.correlation_id(): e for e in self.result._all if e.correlation_id() > 0}
        for event in events:
            known = numbers.get(event.get("args", {}).get("External id", -1))
            if known is not None and event.get("ph") == "X":
                self.threads[event["tid"]] = known.start_thread_id()
        for event in events:
            moved = self._moved(event)
            if moved is not None and (self.result.recording.host or moved["ph"] in "Mi"):
                yield moved

    def _moved(self, event: Event) -> Event | None:
        if event["ph"] == "M":
            return event
        thread = self.threads.get(event["tid"], self.result.main)
        start = self.real(event)
        if event["name"] == MEMORY:
            return self._memory(event, thread, start)
        if event.get("cat") == "Trace" or event["ph"] == "i":
            return self._shifted(event, self.result.moment(thread, start), self._end(event, thread, start))
        inner = event.get("args", {}).get("External id", -1) in self.result.tree.inner
        if not inner and self.result.hidden(thread, start, event["name"], event.get("cat") == "python_function"):
            return None
        return self._shifted(event, self.result.placed(thread, start), self._end(event, thread, start))

    def _end(self, event: Event, thread: int, start: int) -> int | None:
        if "dur" not in event:
            return None
        end = start + round(event["dur"] * 1000)
        if event.get("cat") == "Trace":  # it ends before the window, also in numbers that keep no whole ns
            return self.result.moment(thread, end) - 2
        return self.result.placed(thread, end)

    def _shifted(self, event: Event, begin: int, end: int | None) -> Event:
        moved = event | {"ts": (begin - self.base_ns) / 1000}
        return moved if end is None else moved | {"dur": (end - begin) / 1000}

    def _memory(self, event: Event, thread: int, start: int) -> Event | None:
        found = self.result.memory.get((event["args"].get("Addr", 0), start))
        if found is None:
            return None
        moved = self._shifted(event, found.start_ns(), None)
        if isinstance(found, MemoryEvent):
            moved["args"] = event["args"] | self._taken(found.taken, found.nbytes())
        return moved

    def _taken(self, taken: Taken, size_bytes: int) -> Event:
        """The arguments of an event that memory was taken on a device, or given back."""
        said = self.totals.after(taken, size_bytes)
        return {
            "Addr": said.ptr,
            "Bytes": said.alloc_size,
            "Device Type": 1,
            "Device Id": taken.device,
            "Total Allocated": said.total_allocated,
            "Total Reserved": said.total_reserved,
        }

    def memory(self) -> Iterator[Event]:
        """What PyTorch's own record lacks: frees of memory allocated before the window, and requests that failed."""
        recording = self.result.recording
        tid = next((tid for tid, thread in self.threads.items() if thread == self.result.main), self.pid)
        found = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "pid": self.pid, "tid": tid}
        for death in recording.deaths:
            at = {"name": MEMORY, "ts": (self.result.placed(self.result.main, death.real_ns) - self.base_ns) / 1000}
            yield found | at | {"args": self._taken(death.taken, -death.taken.size_bytes)}
        for failure in recording.failures if recording.of_memory else ():
            at = {"name": "[OutOfMemory]", "ts": (self.result.absolute(failure.host_ns) - self.base_ns) / 1000}
            args = {
                "Bytes": failure.size_bytes, "Device Type": 1, "Device Id": failure.device,
                "Total Allocated": failure.allocated_bytes, "Total Reserved": failure.reserved_bytes,
            }  # fmt: skip
            yield found | at | {"args": args}

    # ------------------------------------------------------------------ devices

    def devices(self) -> Iterator[Event]:
        """What names the lanes; then runtime calls, kernels, copies and ranges with their arrows."""
        result = self.result
        tids = {thread: tid for tid, thread in self.threads.items()}
        facts = result.recording.state.machine.trace.facts["gpus"]
        begin = {"ts": (result.trace_start_ns() - self.base_ns) / 1000}
        lanes = {r.lane.device: set[int]() for r, _, _ in result.records if r.lane.device >= 0}
        for record, _, _ in result.records:
            lanes[record.lane.device].add(record.lane.stream)
        for device, streams in sorted(lanes.items()):
            names = kineto.process_name(device, facts[device]["name"], "EMULATED")
            names += [kineto.stream_name(device, stream) for stream in sorted(streams)]
            yield from (name | begin for name in names)
        first = max((event.correlation_id() for event in result._all), default=0) + 1
        for number, (record, mark, start_ns) in enumerate(result.records, first):
            link = result.links.get(mark, NOWHERE)
            yield from self._call(record, number, link, tids.get(link.thread, self.pid), start_ns)
        for event in result.events():
            if isinstance(event, DeviceEvent) and event.activity_type() == "gpu_user_annotation":
                span = event.start_ns() - self.base_ns, event.end_ns() - self.base_ns
                lane = event.device_index(), event.device_resource_id()
                yield kineto.complete(
                    "gpu_user_annotation", event.name(), *lane, *span, {"External id": event.correlation_id()}
                )

    def _call(self, record: Record, number: int, link: Link, tid: int, start_ns: int) -> Iterator[Event]:
        offset = self.result.absolute(0) - self.base_ns
        moved = record._replace(
            issued_ns=record.issued_ns + offset, start_ns=record.start_ns + offset, end_ns=record.end_ns + offset
        )
        args = {"External id": link.correlation, "correlation": number}
        if self.result.recording.synchronizations and record.kind in kineto.SYNCHRONIZATIONS:
            yield kineto.synchronization(moved, number, link.correlation)
        if record.kind == Kind.SYNCHRONIZE:
            begin = max(moved.start_ns, link.start_ns - self.base_ns)
            yield kineto.complete("cuda_runtime", kineto.wait_name(record), self.pid, tid, begin, moved.end_ns, args)
            return
        begin = kineto.runtime_start(moved, start_ns + offset)
        name = kineto.RUNTIME[record.kind]
        yield kineto.complete("cuda_runtime", name, self.pid, tid, begin, moved.issued_ns, args)
        if record.kind in kineto.ON_DEVICE:
            yield kineto.arrow("s", number, self.pid, tid, begin)
            yield from kineto.work(moved, number, link.correlation)
