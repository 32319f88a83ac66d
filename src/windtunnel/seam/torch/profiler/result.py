"""What `_disable_profiler` returns: the profiler's own result, in modelled time and with the devices' events.

It answers to the names of PyTorch's `_ProfilerResult` (torch/csrc/autograd/init.cpp), which is all that
`torch.autograd.profiler` asks for.
"""

from __future__ import annotations

import functools
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import DeviceType

from windtunnel.seam.torch.profiler.events import (
    HIDDEN,
    MEMORY,
    NOWHERE,
    OWN_FILES,
    DeviceEvent,
    HostEvent,
    Link,
    MemoryEvent,
)
from windtunnel.seam.torch.profiler.recording import Recording
from windtunnel.seam.torch.profiler.times import MARK, Death, SeamMark, Spans, Taken, Timeline, spread
from windtunnel.seam.torch.profiler.tree import Allocated, Fields, Node, StockPlace, Tree
from windtunnel.trace import kineto
from windtunnel.trace.operation import Kind
from windtunnel.trace.trace import Record

if TYPE_CHECKING:
    from torch._C._autograd import _KinetoEvent, _ProfilerResult

Answers = dict[str, Any]
"""What an event says of itself, by the names of its methods."""


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
        marks: dict[int, list[tuple[_KinetoEvent, SeamMark]]] = defaultdict(list)
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

    @functools.cached_property
    def tree(self) -> Tree:
        """What is shown of the profiler's tree of events."""
        return Tree(self._stock.experimental_event_tree(), self.recording.marks)

    # ------------------------------------------------------------------ times

    def _timeline(self, marks: list[tuple[_KinetoEvent, SeamMark]]) -> Timeline:
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
            own = self.inside(thread, event.start_ns()) and event.correlation_id() not in self.tree.inner
            if event.name().startswith(MARK) or not own:
                times[thread] |= {event.start_ns(), event.end_ns()}
        apart = [place.event for place in self.tree.places if place.mark < 0 or place.inside is not None]
        for allocation in apart:
            times[allocation.start_tid].add(allocation.start_time_ns)
        alone = {allocation.start_time_ns for allocation in apart}
        if self.main in times:
            died = {death.real_ns for death in self.recording.deaths}
            times[self.main] |= died
            alone |= died
        return {t: spread(found, functools.partial(self.moment, t), alone) for t, found in times.items()}

    def placed(self, thread: int, real_ns: int) -> int:
        """Where a moment lies among those of the events, in ns since the epoch."""
        known = self.moments.get(thread)
        if not known or not self.modelled:
            return self.moment(thread, real_ns)
        return known[real_ns] if real_ns in known else self._between[thread].at(real_ns)

    @functools.cached_property
    def _between(self) -> dict[int, Timeline]:
        return {thread: Timeline(sorted(found.items())) for thread, found in self.moments.items()}

    def _shown(self) -> Iterator[_KinetoEvent]:
        for event in self._all:
            thread, name = event.start_thread_id(), event.name()
            if name != MEMORY and (
                event.correlation_id() in self.tree.inner
                or not self.hidden(thread, event.start_ns(), name, _is_python(event))
            ):
                yield event

    # ------------------------------------------------------------------ events

    @functools.cached_property
    def _events(self) -> list[HostEvent | DeviceEvent]:
        found: list[HostEvent | DeviceEvent] = []
        if self.recording.host:
            found += [made for events in self._host.values() for _, _, made in events]
            found += [event for event in self.memory.values() if event is not None]
            found += self.deaths
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
        events = {event.start_ns(): event for event in self._all if event.name() == MEMORY}
        visible: dict[tuple[int, int], HostEvent | None] = {}
        earlier = set(self.recording.before)  # their ends are `deaths`; PyTorch knows some of them from earlier windows
        living: dict[int, Taken] = {}
        passing: dict[int, tuple[int, tuple[int, int]]] = {}  # made for a kernel's sake; shown when it outlives it
        for place in sorted(self.tree.places, key=lambda place: int(place.event.start_time_ns)):
            time, pointer = place.event.start_time_ns, place.event.typed[1].ptr  # type: ignore[union-attr]
            event = events.get(time)
            if event is None:
                continue
            key, mark = (pointer, time), place.mark
            moment = self._memory_moment(place)
            visible[key] = HostEvent(event, moment, moment)
            if event.nbytes() < 0:  # type: ignore[attr-defined]  # the stub lacks it
                freed = living.pop(pointer, None)
                temporary = passing.pop(pointer, None)
                if freed is not None:
                    visible[key] = MemoryEvent(event, moment, freed, -1)
                elif pointer in earlier:
                    visible[key] = None
                elif temporary is not None and temporary[0] == mark:
                    visible[temporary[1]] = visible[key] = None
                continue
            taken = self.recording.memory.get((mark, pointer))
            earlier.discard(pointer)
            living.pop(pointer, None)
            if taken is not None:
                living[pointer] = taken
                visible[key] = MemoryEvent(event, moment, taken, 1)
            elif place.lasting:
                passing[pointer] = mark, key
        return visible

    def _memory_moment(self, place: StockPlace) -> int:
        """When memory was taken or given back, in modelled ns since the epoch."""
        time, thread = place.event.start_time_ns, place.event.start_tid
        if place.inside is not None:
            return self.moments[thread][time]
        link = self.links.get(place.mark)
        return link.start_ns + self.recording.marks[place.mark].memory_ns() if link else self.moments[thread][time]

    # ------------------------------------------------------------------ the tree

    def experimental_event_tree(self) -> list[Node]:
        """The roots of the tree of events."""
        return self._tree

    @functools.cached_property
    def _tree(self) -> list[Node]:
        tree = self.tree
        allocated = self._allocated()
        tree.dress(allocated, self._places())
        times: dict[int, set[int]] = defaultdict(set)
        for node in tree.nodes():
            times[node.start_tid] |= {node.start_time_ns, node.end_time_ns}
        tree.move({thread: spread(found, functools.partial(self.moment, thread)) for thread, found in times.items()})
        return tree.roots

    def _allocated(self) -> dict[tuple[int, int], Allocated | None]:
        """What each allocation says in the tree; None for those that are not shown."""
        totals = Totals(self.recording)
        elsewhere = 0  # of what PyTorch counts on the host, the bytes that are not the program's there
        found: dict[tuple[int, int], Allocated | None] = {}
        deaths = list(self.recording.deaths)
        for place in sorted(self.tree.places, key=lambda place: int(place.event.start_time_ns)):
            fields: Fields = place.event.extra_fields  # type: ignore[assignment]
            time = place.event.start_time_ns
            while deaths and deaths[0].real_ns <= time:
                self._bury(deaths.pop(0), totals)
            event = self.memory.get((fields.ptr, time))
            if isinstance(event, MemoryEvent):
                found[fields.ptr, time] = totals.after(event.taken, event.nbytes())
                elsewhere += fields.alloc_size
            elif event is None:
                found[fields.ptr, time] = None
                elsewhere += fields.alloc_size
            else:
                total = max(0, fields.total_allocated - elsewhere)
                known = Allocated(fields.ptr, fields.alloc_size, total, fields.total_reserved, fields.device)
                found[fields.ptr, time] = known
        for death in deaths:
            self._bury(death, totals)
        return found

    def _bury(self, death: Death, totals: Totals) -> None:
        self.tree.bury(death, self.main, totals.after(death.taken, -death.taken.size_bytes))

    @functools.cached_property
    def deaths(self) -> list[DeviceEvent]:
        """The "[memory]" events of storages that were there before the window."""
        return [DeviceEvent(**self._death(death)) for death in self.recording.deaths]

    def _death(self, death: Death) -> Answers:
        return {
            "name": MEMORY,
            "device_type": DeviceType.CUDA,
            "device_index": death.taken.device,
            "device_resource_id": self.main,
            "start_ns": self.placed(self.main, death.real_ns),
            "duration_ns": 0,
            "activity_type": "cpu_instant_event",
            "nbytes": -death.taken.size_bytes,
            "correlation_id": 0,
            "linked_correlation_id": 0,
            "start_thread_id": self.main,
            "end_thread_id": self.main,
            "metadata_json": "",
        }

    def _places(self) -> dict[int, tuple[list[int], list[Taken | None]]]:
        """Whose the values at each pointer were, and from when on."""
        changes: dict[int, tuple[list[int], list[Taken | None]]]
        changes = {pointer: ([0], [taken]) for pointer, taken in self.recording.before.items()}
        for (pointer, time), event in sorted(self.memory.items(), key=lambda item: item[0][1]):
            times, owners = changes.setdefault(pointer, ([], []))
            times.append(time)
            owners.append(event.taken if isinstance(event, MemoryEvent) and event.nbytes() > 0 else None)
        return changes


NOTHING = Spans([])


class Totals:
    """What devices have allocated and reserved as a window goes on, in bytes."""

    def __init__(self, recording: Recording) -> None:
        self.allocated = list(recording.allocated)
        self.reserved = [device.driver.reserved_bytes for device in recording.state.machine.devices]

    def after(self, taken: Taken, size_bytes: int) -> Allocated:
        """What an allocation says of itself that takes so much, or gives it back."""
        index = taken.device
        self.allocated[index] += size_bytes
        self.reserved[index] = taken.reserved_bytes or self.reserved[index]
        device = torch.device("cuda", index)
        return Allocated(taken.address, size_bytes, self.allocated[index], self.reserved[index], device)


def _records(recording: Recording) -> Iterator[tuple[Record, int, int]]:
    """The records of a window, with the number of each one's mark (-1: none) and when the call before it ended."""
    machine = recording.state.machine
    rows = machine.trace.rows
    first, last = recording.rows
    marks = iter(enumerate(recording.marks))
    number, mark = next(marks, (-1, None))
    before_ns: dict[int, int] = {}
    for at, row in zip(range(first, last), rows.since(first), strict=False):
        record = machine.record_of(row)
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


def _number(mark: _KinetoEvent) -> int:
    return int(mark.name()[len(MARK) :])
