"""What `_disable_profiler` returns: the profiler's own result, in modelled time and with the devices' events.

It answers to the names of PyTorch's `_ProfilerResult` (torch/csrc/autograd/init.cpp), which is all that
`torch.autograd.profiler` asks for.
"""

from __future__ import annotations

import functools
import json
import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch._C._autograd import DeviceType
from torch._C._profiler import _EventType

from understudy.seam.torch.profiler.events import MEMORY, NOWHERE, OWN_FILES, DeviceEvent, HostEvent, Link, MemoryEvent
from understudy.seam.torch.profiler.recording import Recording
from understudy.seam.torch.profiler.times import MARK, Mark, Spans, Taken, Timeline, spread
from understudy.trace import kineto
from understudy.trace.operation import Kind
from understudy.trace.rows import WIDTH
from understudy.trace.trace import Record

if TYPE_CHECKING:
    from torch._C._autograd import _KinetoEvent, _ProfilerResult

Answers = dict[str, Any]
"""What an event says of itself, by the names of its methods."""
HIDDEN = frozenset({"PythonDispatchMode"})
"""What newer versions of PyTorch record of the emulation itself."""


class Result:
    """The result of one window, under the names of PyTorch's own; `write(result, stock, path)` saves it."""

    def __init__(
        self, stock: _ProfilerResult, recording: Recording, write: Callable[[Result, _ProfilerResult, str], None]
    ) -> None:
        self._stock = stock
        self._write = write
        self.recording = recording
        self._all = list(stock.events())
        self.records = list(_records(recording))
        self.modelled = recording.rows[1] > recording.rows[0]
        marks: dict[int, list[tuple[_KinetoEvent, Mark]]] = defaultdict(list)
        for event in self._all:
            if event.name().startswith(MARK):
                marks[event.start_thread_id()].append((event, recording.marks[_number(event)]))
        self.threads = {thread: self._timeline(found) for thread, found in marks.items()}
        self.regions = {t: Spans((e.start_ns(), e.end_ns()) for e, _ in found) for t, found in marks.items()}
        self.ours = {t: Spans(spans) for t, spans in _own_functions(self._all).items()}
        self.main = next(iter(self.threads), 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)

    def trace_start_ns(self) -> int:
        """When the window began, in ns since the epoch."""
        return int(self._stock.trace_start_ns())

    def events(self) -> list[HostEvent | DeviceEvent]:
        """Every event: the host's, then the devices'."""
        return self._events

    def save(self, path: str) -> None:
        """Write the window in Kineto's format."""
        self._write(self, self._stock, path)

    # ------------------------------------------------------------------ times

    def _timeline(self, marks: list[tuple[_KinetoEvent, Mark]]) -> Timeline:
        begin, end = self.recording.host_ns
        points = [(self.trace_start_ns(), begin)]
        for event, mark in sorted(marks, key=lambda pair: int(pair[0].start_ns())):
            points += [(event.start_ns(), mark.before_ns), (event.end_ns(), mark.after_ns)]
        last = max((event.end_ns() for event in self._all), default=0)
        return Timeline([*points, (max(last, points[-1][0]) + 1, max(end, points[-1][1]))])

    def absolute(self, modelled_ns: int) -> int:
        """A modelled time, in ns since the epoch: the window began then and then."""
        return self.trace_start_ns() + modelled_ns - self.recording.host_ns[0]

    def moment(self, thread: int, real_ns: int) -> int:
        """Where a moment of the profiler's clock lies in modelled time, in ns since the epoch."""
        timeline = self.threads.get(thread)
        if timeline is None or not self.modelled:
            return real_ns
        return self.absolute(timeline.at(real_ns))

    def inside(self, thread: int, real_ns: int) -> bool:
        """Whether the emulation was at work at that moment."""
        return real_ns in self.regions.get(thread, NOTHING)

    def hidden(self, thread: int, real_ns: int, name: str, is_python: bool) -> bool:
        """Whether an event that began then is the emulation's own."""
        if name in HIDDEN or name.startswith(MARK) or self.inside(thread, real_ns):
            return True
        # A file's times are rounded: the name tells where a function of ours begins.
        return is_python and (name.startswith(OWN_FILES) or real_ns in self.ours.get(thread, NOTHING))

    @functools.cached_property
    def moments(self) -> dict[int, dict[int, int]]:
        """For each thread, its events' ends: the profiler's ns to modelled ns since the epoch."""
        times: dict[int, set[int]] = defaultdict(set)
        for event in self._all:
            thread = event.start_thread_id()
            if event.name().startswith(MARK) or not self.inside(thread, event.start_ns()):
                times[thread] |= {event.start_ns(), event.end_ns()}
        return {t: spread(found, functools.partial(self.moment, t)) for t, found in times.items()}

    def _shown(self) -> Iterator[_KinetoEvent]:
        for event in self._all:
            thread, name = event.start_thread_id(), event.name()
            if name != MEMORY and not self.hidden(thread, event.start_ns(), name, _is_python(event)):
                yield event

    # ------------------------------------------------------------------ events

    @functools.cached_property
    def _events(self) -> list[HostEvent | DeviceEvent]:
        found: list[HostEvent | DeviceEvent] = []
        if self.recording.host:
            found += [made for events in self._host.values() for _, _, made in events]
            found += [event for event in self.memory.values() if event is not None]
        if self.recording.cuda:
            found += self._devices()
        if self.recording.legacy:
            self._elapsed()
        return found

    @functools.cached_property
    def _host(self) -> dict[int, list[tuple[int, int, HostEvent]]]:
        """The host's events by thread, with when they were on the profiler's clock."""
        found: dict[int, list[tuple[int, int, HostEvent]]] = defaultdict(list)
        for event in self._shown():
            thread, start, end = event.start_thread_id(), event.start_ns(), event.end_ns()
            moments = self.moments[thread]
            found[thread].append((start, end, HostEvent(event, moments[start], moments[end])))
        return found

    @functools.cached_property
    def links(self) -> dict[int, Link]:
        """For each mark, by number, the operator and the ranges that it lies in."""
        found: dict[int, Link] = {}
        for thread, events in self._host.items():
            marks: list[tuple[int, int, HostEvent | int]] = [
                (event.start_ns(), event.end_ns(), _number(event))
                for event in self._all
                if event.start_thread_id() == thread and event.name().startswith(MARK)
            ]
            open_events: list[tuple[int, HostEvent]] = []
            for start, end, what in sorted([*events, *marks], key=lambda item: (item[0], -item[1])):
                while open_events and open_events[-1][0] < end:
                    open_events.pop()
                if isinstance(what, HostEvent):
                    if what.correlation_id() > 0:
                        open_events.append((end, what))
                    continue
                around = tuple(event for _, event in open_events)
                number = around[-1].correlation_id() if around else 0
                found[what] = Link(number, thread, self.moments[thread][start], around)
        return found

    def _devices(self) -> list[DeviceEvent]:
        links = self.links
        first = max((event.correlation_id() for event in self._all), default=0) + 1
        found: list[DeviceEvent] = []
        ranges: dict[tuple[int, int, int], tuple[HostEvent, int, int]] = {}
        for number, (record, mark, start_ns) in enumerate(self.records, first):
            link = links.get(mark, NOWHERE)
            found += [DeviceEvent(**answers) for answers in self.answers(record, number, link, start_ns)]
            if record.kind in kineto.ON_DEVICE:
                for event in link.around:
                    if event.is_user_annotation():
                        key = id(event), record.lane.device, record.lane.stream
                        _, begin, end = ranges.get(key, (event, record.start_ns, record.end_ns))
                        ranges[key] = event, min(begin, record.start_ns), max(end, record.end_ns)
        for (_, device, stream), (event, begin, end) in ranges.items():
            found.append(DeviceEvent(**self._range(event, device, stream, begin, end)))
        return found

    def answers(self, record: Record, number: int, link: Link, start_ns: int) -> Iterator[Answers]:
        """What the runtime call of a record says of itself, and its work on the device when it made any."""
        shared = {"correlation_id": number, "linked_correlation_id": link.correlation, "start_thread_id": link.thread}
        shared["end_thread_id"] = link.thread
        if record.kind == Kind.SYNCHRONIZE:
            name, begin, end = kineto.wait_name(record), record.start_ns, record.end_ns
        else:
            name = kineto.RUNTIME[record.kind]
            begin, end = kineto.runtime_start(record, start_ns), record.issued_ns
        begin = max(self.absolute(begin), link.start_ns)
        yield shared | {
            "name": name,
            "device_type": DeviceType.CPU,
            "device_index": os.getpid(),
            "device_resource_id": link.thread,
            "start_ns": begin,
            "duration_ns": max(0, self.absolute(end) - begin),
            "activity_type": "cuda_runtime",
            "metadata_json": f'"correlation": {number}',
            "typed_metadata": {"correlation": number},
        }
        if record.kind not in kineto.ON_DEVICE:
            return
        arguments = kineto.work_arguments(record, number, link.correlation)
        yield shared | {
            "name": kineto.work_name(record),
            "device_type": DeviceType.CUDA,
            "device_index": record.lane.device,
            "device_resource_id": kineto.stream_number(record.lane.stream),
            "start_ns": self.absolute(record.start_ns),
            "duration_ns": record.duration_ns,
            "activity_type": kineto.work_category(record),
            "metadata_json": json.dumps(arguments)[1:-1],
            "extra_meta": {key: str(value) for key, value in arguments.items()},
            "typed_metadata": arguments,
        }

    def _range(self, event: HostEvent, device: int, stream: int, begin: int, end: int) -> Answers:
        """A range of the program's own, as long as its work took on one stream."""
        return {
            "name": event.name(),
            "device_type": DeviceType.CUDA,
            "device_index": device,
            "device_resource_id": kineto.stream_number(stream),
            "start_ns": self.absolute(begin),
            "duration_ns": end - begin,
            "activity_type": "gpu_user_annotation",
            "is_user_annotation": True,
            "correlation_id": event.correlation_id(),
            "linked_correlation_id": 0,
            "start_thread_id": event.start_thread_id(),
            "end_thread_id": event.start_thread_id(),
            "metadata_json": "",
        }

    def _elapsed(self) -> None:
        """Time every operator as CUDA events round it would: from its first kernel's start to its last one's end."""
        spans: dict[int, tuple[HostEvent, int, int]] = {}
        links = self.links
        for record, mark, _ in self.records:
            if record.kind in kineto.ON_DEVICE:
                for event in links.get(mark, NOWHERE).around:
                    _, begin, end = spans.get(id(event), (event, record.start_ns, record.end_ns))
                    spans[id(event)] = event, min(begin, record.start_ns), max(end, record.end_ns)
        for event, begin, end in spans.values():
            event.elapsed_us = max(1, (end - begin) // 1000)

    # ------------------------------------------------------------------ memory

    @functools.cached_property
    def memory(self) -> dict[tuple[int, int], HostEvent | None]:
        """The "[memory]" events to show by (pointer, the profiler's ns); None for what the emulation did for itself."""
        pointers = dict(_allocations(self._stock))
        found: dict[tuple[int, int], HostEvent | None] = {}
        living: dict[int, Taken] = {}
        passing: dict[int, tuple[int, tuple[int, int]]] = {}  # made inside an operator; shown when it outlives it
        for event in sorted((e for e in self._all if e.name() == MEMORY), key=lambda e: int(e.start_ns())):
            time, thread = event.start_ns(), event.start_thread_id()
            mark = self._mark_at(thread, time)
            link = self.links.get(mark)
            moment = link.start_ns + self.recording.marks[mark].memory_ns() if link else self.moments[thread][time]
            pointer = pointers.get(time, 0)
            key = pointer, time
            found[key] = HostEvent(event, moment, moment)
            if event.nbytes() < 0:  # type: ignore[attr-defined]  # the stub lacks it
                given = living.pop(pointer, None)
                made = passing.pop(pointer, None)
                if given is not None:
                    found[key] = MemoryEvent(event, moment, given, -1)
                elif made is not None and made[0] == mark:
                    found[made[1]] = found[key] = None
                continue
            taken = self.recording.memory.get((mark, pointer))
            if taken is not None:
                living[pointer] = taken
                found[key] = MemoryEvent(event, moment, taken, 1)
            elif mark >= 0:
                passing[pointer] = mark, key
        return found

    def _mark_at(self, thread: int, time_ns: int) -> int:
        """The number of the mark in which a moment lies; -1 in none."""
        starts, ends, numbers = self._mark_spans.get(thread, ([], [], []))
        before = bisect_right(starts, time_ns) - 1
        return numbers[before] if before >= 0 and time_ns <= ends[before] else -1

    @functools.cached_property
    def _mark_spans(self) -> dict[int, tuple[list[int], list[int], list[int]]]:
        found: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for event in self._all:
            if event.name().startswith(MARK):
                found[event.start_thread_id()].append((event.start_ns(), event.end_ns(), _number(event)))
        return {t: ([s for s, _, _ in m], [e for _, e, _ in m], [n for _, _, n in m]) for t, m in found.items()}


NOTHING = Spans([])


def _records(recording: Recording) -> Iterator[tuple[Record, int, int]]:
    """The records of a window, with the number of each one's mark (-1: none) and when the call before it ended."""
    machine = recording.state.machine
    rows = machine.trace.rows
    rows.spill()
    first, last = recording.rows
    marks = iter(enumerate(recording.marks))
    number, mark = next(marks, (-1, None))
    before_ns: dict[int, int] = {}
    for at in range(first, last):
        row = rows.stored[at * WIDTH : (at + 1) * WIDTH]
        record = machine.record_of(tuple(row))  # type: ignore[arg-type]
        if record.kind not in kineto.RUNTIME and record.kind != Kind.SYNCHRONIZE:
            continue
        while mark is not None and mark.last <= at:
            number, mark = next(marks, (-1, None))
        mine = mark is not None and mark.first <= at and record.lane.thread == mark.thread
        begin = max(before_ns.get(record.lane.thread, 0), mark.before_ns if mark is not None and mine else 0)
        before_ns[record.lane.thread] = max(record.issued_ns, record.end_ns * (record.kind == Kind.SYNCHRONIZE))
        if sum(at >= switch for switch in recording.off) % 2 == 0:
            yield record, number if mine else -1, begin


def _own_functions(events: list[_KinetoEvent]) -> dict[int, list[tuple[int, int]]]:
    """The stretches in which Python functions of the emulation ran, by thread."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event.name().startswith(OWN_FILES):
            found[event.start_thread_id()].append((event.start_ns(), event.end_ns()))
    return found


def _is_python(event: _KinetoEvent) -> bool:
    return ".py(" in event.name() or event.name().startswith("<")


def _allocations(stock: _ProfilerResult) -> Iterator[tuple[int, int]]:
    """When, in ns, and where the allocations in the profiler's tree of events are."""
    waiting = list(stock.experimental_event_tree())
    while waiting:
        node = waiting.pop()
        waiting += node.children
        if node.tag == _EventType.Allocation:
            yield int(node.start_time_ns), int(node.typed[1].ptr)  # type: ignore[union-attr]  # which the tag tells


def _number(mark: _KinetoEvent) -> int:
    return int(mark.name()[len(MARK) :])
