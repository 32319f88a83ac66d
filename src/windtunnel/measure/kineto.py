"""A trace of `torch.profiler` (Kineto's JSON) as a Trace, so that checks and reports work on what a GPU really did.

Categories, names and arguments are those that Kineto's `output_json.cpp` writes. A kernel or copy on the device belongs
to the runtime call of the same correlation number; that call's thread, operator and line are the record's. What a
profile does not hold is left out, and `facts["not_decidable"]` names the checks that would need it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from windtunnel import foreign
from windtunnel.errors import FileFormatError
from windtunnel.measure import kineto_facts
from windtunnel.measure.kineto_hosts import Call, Event, Hosts
from windtunnel.measure.kineto_names import COPIES, DTYPES, SIZES, WAITS, is_matrix_unit, waiting_operator
from windtunnel.trace.kineto import DEFAULT_STREAM
from windtunnel.trace.operation import UNKNOWN_SITE, Kind, Lane, Signature, Site
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace, require_sound

DEVICE_WORK = {
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "gpu_memset": Kind.KERNEL,
    "Memset": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "Memcpy": Kind.COPY,
}


WHAT = "a trace of torch.profiler (`export_chrome_trace` writes one)"


class Line(NamedTuple):
    """One row before it has numbers; sorted by when the host asked for it."""

    issued_ns: int
    order: int
    kind: Kind
    lane: Lane
    signature: Signature
    site: Site
    start_ns: int
    end_ns: int
    value: int


def is_kineto(data: bytes) -> bool:
    """Whether a file's first bytes are those of a Kineto trace, compressed or not."""
    if data[:2] == foreign.GZIP:
        try:
            data = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, 512)
        except zlib.error:
            return False
    head = data.lstrip()[:512]
    return head[:1] in (b"{", b"[") and (b'"schema_version"' not in head[:64])


def load(path: str | Path) -> Trace:
    """Read a Kineto trace, `.json` or `.json.gz`.

    Raises:
        FileFormatError: the file is not JSON, or holds no events.
        OSError: the file cannot be read.
    """
    data = foreign.unpacked(foreign.read_bytes(path), path)
    return from_document(foreign.from_json(data, path, WHAT), str(path))


def from_document(document: object, path: str = "the trace") -> Trace:
    """The Trace of a Kineto document that is already in memory; raises FileFormatError when it is none."""
    events = document if isinstance(document, list) else None
    head: Json = {}
    if isinstance(document, dict):
        head, events = document, document.get("traceEvents")
    if not isinstance(events, list) or not all(isinstance(event, Mapping) for event in events):
        raise FileFormatError(f"{path} holds no traceEvents, so it is not a trace of torch.profiler")
    try:
        trace = _Reader(foreign.printable(head, path), foreign.printable(events, path)).trace
        require_sound(trace, path)
        return trace
    except foreign.UNFIT as error:
        raise FileFormatError(f"{path} has an event that Kineto does not write: {error!r}") from error


class _Reader:
    """One document on its way into one trace."""

    def __init__(self, head: Json, events: list[Event]) -> None:
        self.trace = Trace()
        self.hosts = Hosts(events)
        timed = [float(event["ts"]) for event in events if event.get("ph") == "X" and event.get("cat") != "Trace"]
        # Our own exports begin at 0; the profiler's times count from an epoch.
        self.ours = "windtunnel" in head
        self.origin_us = 0.0 if self.ours else min(timed, default=0.0)
        self.calls = {_number(call.event): call for call in self.hosts.calls if _number(call.event) >= 0}
        self.devices: dict[int, tuple[int, int]] = {}  # correlation -> device and stream of what the host waits for
        work = [event for event in events if event.get("ph") == "X" and event.get("cat") in DEVICE_WORK]
        self.many = max(len(work), len(self.hosts.calls)) + 1  # more than any of the numbers that order equal times
        self.plain_streams = any(_stream_of(event) < DEFAULT_STREAM for event in work)
        for event in events:
            if event.get("cat") == "cuda_sync":
                arguments = event.get("args") or {}
                self.devices[_number(event)] = int(arguments.get("device", 0)), int(arguments.get("stream", 0))
        lines = [*self._work(work), *self._waits(), *self._steps()]
        for line in sorted(lines, key=lambda line: line[:2]):
            self._row(line)
        self.trace.facts |= kineto_facts.facts(head, events, self.trace)
        kineto_facts.memory(self.trace, events, self.ns)

    def ns(self, microseconds: float) -> int:
        """A time of the file in whole nanoseconds from the first event."""
        return round((microseconds - self.origin_us) * 1000)

    def _row(self, line: Line) -> None:
        trace = self.trace
        trace.rows.append(
            (
                line.kind,
                trace.lanes.number(line.lane),
                trace.signatures.number(line.signature),
                trace.sites.number(line.site),
                line.issued_ns,
                line.start_ns,
                line.end_ns,
                line.value,
            )
        )

    # ------------------------------------------------------------------ what the devices did

    def _work(self, events: Iterable[Event]) -> Iterator[Line]:
        blocking = self._blocking_copies()
        for order, event in enumerate(events):
            arguments: Json = event.get("args") or {}
            start_ns, end_ns = self.ns(float(event["ts"])), self.ns(float(event["ts"]) + float(event.get("dur", 0)))
            call = self.calls.get(_number(event))
            thread, issued_ns, site = 0, start_ns, UNKNOWN_SITE
            if call is not None:
                thread, site = call.thread, call.site
                issued_ns = self.ns(float(call.event["ts"]) + float(call.event.get("dur", 0)))
            lane = Lane(
                int(arguments["device"] if "device" in arguments else event["pid"]), self._stream(event), thread
            )
            kind, signature, value = self._what(event, arguments, call, _number(event) in blocking)
            yield Line(issued_ns, order, kind, lane, signature, site, start_ns, end_ns, value)

    def _what(self, event: Event, arguments: Json, call: Call | None, blocking: bool) -> tuple[Kind, Signature, int]:
        """Kind, signature and value of one thing that a device did."""
        name = str(event["name"])
        if DEVICE_WORK[event["cat"]] == Kind.COPY:
            detail = (("non_blocking", 0 if blocking else 1),)
            return Kind.COPY, Signature(COPIES.get(name, name), detail=detail), int(arguments.get("bytes", 0))
        if name.startswith("nccl"):
            size = int(arguments.get("In msg nelems", 0)) * SIZES.get(str(arguments.get("dtype", "")), 1)
            return Kind.COLLECTIVE, Signature(str(arguments.get("Collective name", name))), size
        operator = call.operators[-1] if call is not None and call.operators else None
        if operator is None:
            return Kind.KERNEL, Signature(name), int(arguments.get("bytes", 0))
        return Kind.KERNEL, _signature(operator, name), int(arguments.get("bytes", 0))

    def _stream(self, event: Event) -> int:
        stream = _stream_of(event)
        return stream if self.plain_streams else stream - DEFAULT_STREAM

    def _blocking_copies(self) -> set[int]:
        """Correlations of the copies after which the same operator, on the same thread, waits for the stream."""
        found = set()
        latest: dict[int, Call] = {}
        for call in self.hosts.calls:
            name = str(call.event["name"])
            if name.startswith("cudaMemcpy"):
                latest[call.thread] = call
                if "Async" not in name:
                    found.add(_number(call.event))
            elif name in WAITS and call.thread in latest:
                copy = latest.pop(call.thread)
                same = bool(call.operators and copy.operators) and call.operators[0] is copy.operators[0]
                # Our own exports have two operators there, one after the other.
                if same or (self.ours and _number(call.event) == _number(copy.event) + 1):
                    found.add(_number(copy.event))
        return found

    # ------------------------------------------------------------------ what the host did

    def _waits(self) -> Iterator[Line]:
        latest: dict[int, Lane] = {}
        lanes = {number: self._lane_of(number) for number in self.devices}
        for order, call in enumerate(self.hosts.calls):
            name = str(call.event["name"])
            number = _number(call.event)
            if name not in WAITS:
                continue
            lane = lanes.get(number) or latest.get(call.thread) or Lane(0, 0, call.thread)
            lane = latest[call.thread] = lane._replace(thread=call.thread)
            start, length = float(call.event["ts"]), float(call.event.get("dur", 0))
            start_ns, end_ns = self.ns(start), self.ns(start + length)
            signature = Signature(waiting_operator(name, call.operators))
            order += self.many  # after the copy that it waits for
            yield Line(start_ns, order, Kind.SYNCHRONIZE, lane, signature, call.site, start_ns, end_ns, 0)

    def _lane_of(self, number: int) -> Lane:
        device, stream = self.devices[number]
        known = 0 <= stream < 1 << 31
        shown = stream if self.plain_streams else max(0, stream - DEFAULT_STREAM)
        return Lane(device, shown if known else 0)

    def _steps(self) -> Iterator[Line]:
        """Optimizer steps where the profile names them, else the profiler's own steps."""
        for prefix in ("Optimizer.step#", "ProfilerStep#"):
            found = [one for one in self.hosts.annotations if str(one.event["name"]).startswith(prefix)]
            if found:
                break
        found.sort(key=lambda one: float(one.event["ts"]))
        for number, (event, thread, _, site) in enumerate(found, 1):
            if prefix == "ProfilerStep#":
                number = int(str(event["name"]).removeprefix(prefix))
            end_ns = self.ns(float(event["ts"]) + float(event.get("dur", 0)))
            lane, order = Lane(-1, 0, thread), 2 * self.many + number
            yield Line(end_ns, order, Kind.STEP, lane, Signature("Optimizer.step"), site, end_ns, end_ns, number)


def _signature(operator: Event, kernel: str) -> Signature:
    """The operator with its shapes and types, where the profile recorded them, and whether tensor cores did it."""
    arguments = operator.get("args") or {}
    shapes, dtypes = [], []
    for shape, dtype in zip(arguments.get("Input Dims") or [], arguments.get("Input type") or [], strict=False):
        if dtype in DTYPES and all(isinstance(size, int) for size in shape):
            shapes.append(tuple(shape))
            dtypes.append(DTYPES[dtype])
    detail: list[tuple[str, str | int]] = [] if kernel == operator["name"] else [("kernel", kernel)]
    if is_matrix_unit(kernel):
        detail.append(("tensor_cores", 1))
    return Signature(str(operator["name"]), tuple(shapes), tuple(dtypes), len(shapes), detail=tuple(detail))


def _number(event: Event) -> int:
    return int((event.get("args") or {}).get("correlation", -1))


def _stream_of(event: Event) -> int:
    arguments: Json = event.get("args") or {}
    return int(arguments["stream"] if "stream" in arguments else event["tid"])
