"""The machine: takes operations, decides when they run, and writes down what happened.

Its verbs are `launch`, `copy`, `collective`, `record`, `wait_event`, `barrier`, `synchronize_...` and `query_...`; the
devices' allocators give memory. Only verbs move time, in whole nanoseconds and forward only. The machine never sees a
value: the framework computes those in program order on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from windtunnel.cost.bands import Known
from windtunnel.machine import capture, launches
from windtunnel.machine.clock import HostThread, ended, started
from windtunnel.machine.device import Device
from windtunnel.machine.exclusive import Turns
from windtunnel.machine.launches import MARKED
from windtunnel.machine.occupancy import FULL
from windtunnel.machine.order import Access, Accesses, VectorClock, join, knows
from windtunnel.machine.overlap import Strided
from windtunnel.machine.reuse import LEAST_BYTES
from windtunnel.machine.stream import Event, Stream
from windtunnel.networks import Spread
from windtunnel.trace.operation import FIRST_USE, Hazard, Kind, Lane, Note, Signature
from windtunnel.trace.rows import SPILL, Row
from windtunnel.trace.trace import Record, Trace

COPY, SYNCHRONIZE = int(Kind.COPY), int(Kind.SYNCHRONIZE)


class Cost:
    """What one signature costs on one device; the seam keeps one per (operator, shapes, dtypes)."""

    __slots__ = (
        "band", "dispatch_ns", "duration_ns", "is_large", "number", "occupancy", "peak_ns", "size_bytes", "variants",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        dispatch_ns: int,
        duration_ns: int,
        occupancy: int,
        size_bytes: int,
        band: float,
        peak_ns: float = 0.0,
    ) -> None:
        self.number = number
        self.dispatch_ns = dispatch_ns
        self.duration_ns = duration_ns
        self.occupancy = occupancy
        self.size_bytes = size_bytes
        self.band = band
        self.peak_ns = peak_ns
        self.is_large = size_bytes >= LEAST_BYTES
        self.variants: dict[str, Cost] | None = None

    def taking(self, dispatch_ns: int, duration_ns: int) -> Cost:
        """The same kernel with other times."""
        return Cost(self.number, dispatch_ns, duration_ns, self.occupancy, self.size_bytes, self.band, self.peak_ns)


class Storage(Protocol):
    """Memory that accesses are ordered on: anything with an `accesses` attribute."""

    accesses: Accesses | None


Range = tuple[Storage, int, int, Strided | None]
"""A storage with the first byte and the end of a range in it, and which of its bytes where not all."""

LATEST_NOTES = 8


class Machine:
    """Emulated GPUs and the host that drives them.

    `installed` are all of them, `devices` those that the program sees, under its numbers.
    `blocking` makes every launch wait (CUDA_LAUNCH_BLOCKING=1). `concurrent` turns true once a second stream exists:
    only then do accesses race. `watching` says that the seam is to report accesses at the moment. `on_order` is called
    whenever the host may have become ordered after more work: that is when late copies land. `warm` says that what is
    done once has been done already; `turns` are what threads of the host take at the verbs. `backward_ns` is the host's
    part of a kernel of a backward pass beside its dispatch, `parameter_ns` an optimizer's of a parameter, `event_ns`
    that of the first record of an event that tells the time.
    """

    def __init__(self, trace: Trace, devices: Sequence[Device], turns: Turns | None = None) -> None:
        self.trace = trace
        self.turns = turns or Turns()
        self.turns.guard(self, trace.rows, trace.memory)
        self.devices = list(devices)
        self.installed = self.devices
        self.host_order: VectorClock = {}
        self.host = HostThread(0, 0, self.host_order)
        self._hosts = 1
        self._joined: list[HostThread] = []
        self.blocking = False
        self.concurrent = False
        self.watching = True
        self.warm = True
        self.backward_ns = 0
        self.parameter_ns = 0
        self.event_ns = 0
        self.on_order: Callable[[], None] | None = None
        self.known: dict[int, Known] = {}
        self._staged: set[tuple[int, int]] = set()  # copies whose bytes may arrive after the host went on
        self._names: dict[str, int] = {}  # the signatures that are a name alone

    # ------------------------------------------------------------------ hosts

    @property
    def threads(self) -> int:
        """How many threads of the host there have been at one time."""
        return self._hosts

    def fork(self, parent: HostThread) -> HostThread:
        """A new host thread that starts where `parent` stands; it takes the place of one that was joined."""
        self.turns.begin()
        if self._joined:
            child = self._joined.pop()
            child.now_ns = max(child.now_ns, parent.now_ns)
        else:
            self._hosts += 1
            child = HostThread(self._hosts - 1, parent.now_ns, self.host_order)
        started(parent, child)
        self._row(Kind.FORK, self._host_lane(child), self._name("thread starts"), 0, child.now_ns, parent.now_ns,
                  child.now_ns, parent.index)  # fmt: skip
        return child

    def join(self, parent: HostThread, child: HostThread) -> None:
        """Let `parent` wait for `child` to end, and for the turns that it took at Python's lock; do this once."""
        begin = parent.now_ns
        parent.wait_until(ended(child, self.installed[0].cost.lock_share if self.installed else 0.0))
        self._row(Kind.JOIN, self._host_lane(parent), self._name("thread ends"), 0, parent.now_ns, begin,
                  parent.now_ns, child.index)  # fmt: skip
        self._joined = sorted([*self._joined, child], key=lambda host: -host.index)

    # ------------------------------------------------------------------ prices

    def price(self, device: Device, signature: Signature) -> Cost:
        """The cost of a kernel signature on a device; callers keep it."""
        kernel = device.cost.kernel(signature)
        size = signature.read_bytes + signature.written_bytes
        number = self.trace.signatures.numbers[signature]
        self.known[number] = kernel.known
        found = Cost(
            number,
            device.cost.dispatch_ns(signature.name),
            kernel.duration_ns,
            max(1, min(FULL, round(kernel.occupancy * FULL))),
            size,
            kernel.band,
            kernel.peak_ns,
        )
        if found.is_large and device.cost.heeds_reuse(signature):
            found.variants = {"": found}
        return found

    def band(self) -> float | None:
        """The error band of the trace's kernels together, as a share of their time; None without kernels."""
        limits = (device.sustained.met for device in self.installed)
        return launches.band(self.trace, self.known, next((one for one in limits if one is not None), None))

    def first_use(self, host: HostThread, device: Device, name: str) -> None:
        """Charge the host for what happens once on a device: its "context", or a library that operator `name` needs."""
        if self.warm:
            return
        for what, duration_ns in device.cost.first_use_ns(name):
            if what not in device.used:
                device.used.add(what)
                host.advance(duration_ns)
                self.mark(host, Kind.HOST, FIRST_USE + what, duration_ns, 0, duration_ns)
                self.trace.hand_on()

    # ------------------------------------------------------------------ work

    def launch(self, host: HostThread, stream: Stream, cost: Cost, site: int = 0) -> int:
        """Queue a kernel; returns when it ends."""
        device = self.devices[stream.device]
        issued = host.now_ns = host.now_ns + cost.dispatch_ns + host.extra_ns
        start = issued + device.cost.launch_ns
        if self.concurrent:
            if stream.capture is not None:
                return stream.capture.add(
                    stream, Kind.KERNEL, cost.number, site, cost.duration_ns, cost.size_bytes, cost.occupancy,
                    peak_ns=cost.peak_ns,
                )  # fmt: skip
            self._wait_implicitly(host, device, stream)
        if start < stream.ready_ns:
            start = stream.ready_ns
        duration = cost.duration_ns
        if cost.peak_ns:
            duration = round(duration * device.sustained.slowdown(cost.peak_ns, start))
        if self.concurrent and len(device.streams) > 1:
            start, duration = device.place(stream, issued, start, duration, cost.occupancy)
        end = stream.ready_ns = start + duration
        stream.epoch += 1
        lane = host.lanes.get(stream)
        if lane is None:
            lane = self.lane(host, stream)
        buffer = self.trace.rows.buffer
        buffer.extend((0, lane, cost.number, site, issued, start, end, cost.size_bytes))
        if not stream.epoch % MARKED:
            if len(buffer) >= SPILL and host.index == 0:
                self.trace.spill()
            launches.throttle(self.trace, device, host, stream, lane)
        if self.blocking:
            self._wait(host, end, stream.agent, stream.epoch, stream.order)
        return end

    def post(self, host: HostThread, stream: Stream | None, call: Signature, launch: int, site: int = 0) -> None:
        """A message is posted on a stream, or on the host; it goes with the launch of that number."""
        if stream is not None and stream.capture is not None:
            return
        lane = self._host_lane(host) if stream is None else self.lane(host, stream)
        ready = host.now_ns if stream is None else self.ready_ns(host, stream, call.name)
        self._row(Kind.POST, lane, self.trace.signatures.numbers[call], site, host.now_ns, ready, ready, launch)

    def ready_ns(self, host: HostThread, stream: Stream, name: str) -> int:
        """When a collective or a message that is called now can begin on a stream, as far as this rank goes."""
        cost = self.devices[stream.device].cost
        return max(stream.ready_ns, host.now_ns + cost.dispatch_ns(name) + cost.launch_ns)

    def meet(
        self,
        host: HostThread,
        stream: Stream | None,
        call: Signature,
        until_ns: int,
        number: int,
        site: int = 0,
        begins_ns: int | None = None,
    ) -> None:
        """Let a call wait for the other ranks, which are ready at `until_ns`: on a stream, or else on the host.

        What belongs to a launch that began before, at `begins_ns`, does not wait for the rest of that launch.
        """
        if stream is None:
            begin, lane = host.now_ns, self._host_lane(host)
            host.wait_until(until_ns)
            ready, until = begin, host.now_ns
        elif stream.capture is not None:
            return
        else:
            begin, lane = host.now_ns, self.lane(host, stream)
            ready = self.ready_ns(host, stream, call.name) if begins_ns is None else begins_ns
            until = stream.ready_ns = max(ready, until_ns)
        self._row(Kind.MEETING, lane, self.trace.signatures.numbers[call], site, begin, ready, until, number)

    def collective(
        self,
        host: HostThread,
        stream: Stream,
        call: Signature,
        size_bytes: int,
        site: int = 0,
        launched: bool = False,
    ) -> int:
        """Queue one rank's part of a collective, or a message, and return when it ends.

        The ranks are those of `call.detail`. It may be `launched` already, as part of an earlier kernel.
        """
        device = self.devices[stream.device]
        issued = host.now_ns = host.now_ns + (0 if launched else device.cost.dispatch_ns(call.name))
        number = self.trace.signatures.numbers[call]
        spread = Spread.of_detail(call.detail)
        duration = device.cost.collective_ns(call.name, size_bytes, spread.ranks, spread)
        if stream.capture is not None:
            return stream.capture.add(stream, Kind.COLLECTIVE, number, site, duration, size_bytes)
        self._wait_implicitly(host, device, stream)
        start = stream.ready_ns if launched else max(issued + device.cost.launch_ns, stream.ready_ns)
        end = stream.ready_ns = start + duration
        if self.concurrent:
            device.communicate(stream, device.cost.collective_share(call.name, spread), start, end)
        stream.epoch += 1
        self._row(Kind.COLLECTIVE, self.lane(host, stream), number, site, issued, start, end, size_bytes)
        if self.blocking:
            self._wait(host, end, stream.agent, stream.epoch, stream.order)
        return end

    def copy(
        self,
        host: HostThread,
        stream: Stream,
        signature: Signature,
        size_bytes: int,
        source: int,
        destination: int,
        pinned: bool,
        site: int = 0,
    ) -> int:
        """Queue a transfer between `source` and `destination` (device indices, -1 the host); returns when it ends."""
        device = self.devices[stream.device]
        issued = host.now_ns = host.now_ns + device.cost.copy_dispatch_ns
        duration = device.cost.copy_ns(size_bytes, source, destination, pinned)
        direction = "HtoD" if source < 0 else "DtoH" if destination < 0 else "DtoD"
        number = self.trace.signatures.numbers[signature]
        if stream.capture is not None:
            return stream.capture.add(stream, Kind.COPY, number, site, duration, size_bytes, engine=direction)
        if device.external:
            self._wait_implicitly(host, device, stream)
        start = max(issued + device.cost.launch_ns, stream.ready_ns, device.engine_ready_ns[direction])
        end = stream.ready_ns = device.engine_ready_ns[direction] = start + duration
        stream.epoch += 1
        lane = host.lanes.get(stream)
        if lane is None:
            lane = self.lane(host, stream)
        self.trace.rows.buffer.extend((COPY, lane, number, site, issued, start, end, size_bytes))
        if self.blocking:
            self._wait(host, end, stream.agent, stream.epoch, stream.order)
        return end

    def _wait_implicitly(self, host: HostThread, device: Device, stream: Stream) -> None:
        for other in device.blocks(stream) if device.external else ():
            self.barrier(host, other, stream)

    def begin_streams(self) -> None:
        """From now on several streams may be in use: accesses are ordered, and kernels share a device's room."""
        if not self.concurrent:
            self.concurrent = self.watching = True
            launches.fill_rooms(self.trace, self.devices, self.host.now_ns)

    def barrier(self, host: HostThread, first: Stream, second: Stream) -> None:
        """Make `second` wait for all that was submitted to `first`, as an event between them does."""
        if first.capture is not None or second.capture is not None:
            capture.barrier(first, second)
            return
        if second.order.get(first.agent, 0) < first.epoch:
            lanes = host.lanes
            behind = lanes[second] if second in lanes else self.lane(host, second)
            ahead = lanes[first] if first in lanes else self.lane(host, first)
            self._row(Kind.BARRIER, behind, self._name("cudaStreamWaitEvent"), 0, host.now_ns,
                      first.ready_ns, max(second.ready_ns, first.ready_ns), ahead)  # fmt: skip
        second.ready_ns = max(second.ready_ns, first.ready_ns)
        join(second.order, first.order, host.order)
        second.order[first.agent] = max(second.order.get(first.agent, 0), first.epoch)

    def align(self, host: HostThread, streams: Sequence[Stream]) -> None:
        """Make later work on each of several streams wait for all that was submitted to any of them."""
        for stream in streams[1:]:
            self.barrier(host, stream, streams[0])
        for stream in streams[1:]:
            self.barrier(host, streams[0], stream)

    def busy(self, host: HostThread, stream: Stream, duration_ns: int, site: int = 0) -> int:
        """Queue a kernel that does nothing for `duration_ns` (`torch.cuda._sleep`); returns when it ends.

        Its one thread takes no room from kernels of other streams, which may fill the device beside it.
        """
        number = self.trace.signatures.number(Signature("spin_kernel"))
        dispatch = self.devices[stream.device].cost.dispatch_ns("spin_kernel")
        return self.launch(host, stream, Cost(number, dispatch, duration_ns, 0, 0, 0.0), site)

    def sleep(self, host: HostThread, duration_ns: int, site: int = 0, by: str = "time.sleep") -> None:
        """The host does nothing for so long; `by` names what let it."""
        host.sleep(duration_ns)
        self.mark(host, Kind.HOST, by, duration_ns, site, duration_ns)

    # ------------------------------------------------------------------ events

    def number(self, host: HostThread) -> int:
        """A new number for an event or a launch of messages."""
        host.events += 1  # by thread, so that it does not depend on which one happens to come first
        return (host.index << 32) + host.events

    def event(self, host: HostThread, timed: bool = False) -> Event:
        """A new event, never recorded; `timed` where it tells the time."""
        return Event(self.number(host), timed)

    def record(self, host: HostThread, event: Event, stream: Stream, site: int = 0, charged: bool = True) -> None:
        """Mark where `stream` stands: the event completes when all that was submitted to it has.

        The host's time is not `charged` where it is part of another call's. What comes after an event that tells the
        time starts a little later: the row ends then.
        """
        cost = self.devices[stream.device].cost
        host.now_ns += (cost.event_ns if charged else 0) + (
            self.event_ns if event.timed and event.stream is None else 0
        )
        event.stream = stream
        if stream.capture is not None:
            stream.capture.record(event, stream)
            return
        if self.devices[stream.device].external:
            self._wait_implicitly(host, self.devices[stream.device], stream)
        event.capture = None
        event.time_ns = end_ns = max(stream.ready_ns, host.now_ns + cost.launch_ns)
        if event.timed:
            stream.ready_ns = end_ns = end_ns + cost.stamp_ns
        event.order = dict(stream.order)
        join(event.order, host.order)
        event.order[stream.agent] = stream.epoch
        self._row(Kind.EVENT_RECORD, self.lane(host, stream), self._name("cudaEventRecord"), site,
                  host.now_ns, event.time_ns, end_ns, event.number)  # fmt: skip

    def wait_event(self, host: HostThread, event: Event, stream: Stream, site: int = 0) -> None:
        """Make later work on `stream` wait for the latest record of `event`; nothing when it was never recorded."""
        host.now_ns += self.devices[stream.device].cost.event_ns
        if capture.wait_event(event, stream) or event.time_ns is None:
            return
        stream.ready_ns = max(stream.ready_ns, event.time_ns)
        join(stream.order, event.order)
        self._row(Kind.EVENT_WAIT, self.lane(host, stream), self._name("cudaStreamWaitEvent"), site,
                  host.now_ns, event.time_ns, stream.ready_ns, event.number)  # fmt: skip

    def query_event(self, host: HostThread, event: Event) -> bool:
        """Whether the event's latest record is complete; a true answer orders the host after it."""
        capture.refuse_event(event)
        host.now_ns += self.devices[0].cost.event_ns
        if event.time_ns is None:
            return True
        if event.time_ns > host.now_ns:
            return False
        self._ordered(host, event.order)
        return True

    def query_stream(self, host: HostThread, stream: Stream) -> bool:
        """Whether all that was submitted to the stream is complete; a true answer orders the host after it."""
        if stream.capture is not None:
            raise stream.capture.fail(capture.UNSUPPORTED)
        host.now_ns += self.devices[stream.device].cost.event_ns
        if stream.ready_ns > host.now_ns:
            return False
        self._ordered(host, {**stream.order, stream.agent: stream.epoch})
        return True

    # ------------------------------------------------------------------ waiting

    def synchronize_event(self, host: HostThread, event: Event, site: int = 0) -> int:
        """Let the host wait for an event; returns for how long, in ns."""
        capture.refuse_event(event)
        if event.time_ns is None or event.stream is None:
            return 0
        join(host.order, event.order)
        return self._synchronize(host, event.stream, event.time_ns, "cudaEventSynchronize", site, event.number)

    def synchronize_stream(
        self, host: HostThread, stream: Stream, name: str = "cudaStreamSynchronize", site: int = 0, but_last: int = 0
    ) -> int:
        """Let the host wait for all that was submitted to a stream; returns for how long, in ns. It is not ordered
        after the last `but_last` of it: a copy from pageable memory returns before its bytes arrive."""
        if stream.capture is not None:
            raise stream.capture.fail(capture.UNSUPPORTED)
        if but_last:
            self._staged.add((stream.agent, stream.epoch))
        join(host.order, stream.order, {stream.agent: stream.epoch - but_last})
        return self._synchronize(host, stream, stream.ready_ns, name, site)

    def synchronize_device(
        self, host: HostThread, device: Device, name: str = "cudaDeviceSynchronize", site: int = 0
    ) -> int:
        """Let the host wait for everything on a device; returns for how long, in ns."""
        for stream in device.streams:
            if stream.capture is not None:
                raise stream.capture.fail(capture.UNSUPPORTED)
        for stream in device.streams:
            join(host.order, stream.order, {stream.agent: stream.epoch})
        return self._synchronize(host, device.default_stream, device.ready_ns(), name, site)

    def _synchronize(
        self, host: HostThread, stream: Stream, until_ns: int, name: str, site: int, event: int = 0
    ) -> int:
        """Let the host, which is ordered after what it waits for already, wait until then."""
        begin = host.now_ns
        host.now_ns += self.devices[stream.device].cost.synchronize_ns
        waited = host.wait_until(until_ns)
        lane = host.lanes.get(stream)
        if lane is None:
            lane = self.lane(host, stream)
        number = self._names.get(name)
        if number is None:
            number = self._name(name)
        self.trace.rows.buffer.extend((SYNCHRONIZE, lane, number, site, begin, begin, host.now_ns, event))
        if self.on_order is not None:
            self.on_order()
        if self.trace.sink is not None:
            self.trace.hand_on(host.index)
        return waited

    def _wait(self, host: HostThread, until_ns: int, agent: int, epoch: int, order: VectorClock) -> None:
        host.wait_until(until_ns)
        self._ordered(host, {**order, agent: epoch})

    def _ordered(self, host: HostThread, order: VectorClock) -> None:
        join(host.order, order)
        if self.on_order is not None:
            self.on_order()

    def order_all(self, host: HostThread) -> None:
        """Order the host after all work so far, without a wait: a failure leaves accesses that are in no race."""
        for device in self.devices:
            for stream in device.streams:
                join(host.order, stream.order, {stream.agent: stream.epoch})

    def host_knows(self, agent: int, epoch: int) -> bool:
        """Whether the host is ordered after that work."""
        return knows(self.host_order, agent, epoch)

    # ------------------------------------------------------------------ order and races

    def access(
        self, host: HostThread, stream: Stream, reads: Iterable[Range], writes: Iterable[Range], site: int
    ) -> list[Hazard]:
        """Order the accesses of the work last submitted to `stream`; returns the hazards, which are also recorded."""
        if stream.capture is not None:
            return []
        join(stream.order, host.order)
        lane, agent, epoch, order = self.lane(host, stream), stream.agent, stream.epoch, stream.order
        found = []
        for write, ranges in ((False, reads), (True, writes)):
            for storage, start, end, strided in ranges:
                access = Access(agent, epoch, start, end, write, lane, site, strided)
                known = storage.accesses
                if known is None:
                    known = storage.accesses = Accesses()
                other = known.conflict(access, order) if self.concurrent else None
                known.add(access)
                known.forget(self.host_order)
                if other is not None:
                    code = "freed-in-use" if other.freed else "unsynchronized-access"
                    found.append(self.hazard(code, other, access))
        return found

    def hazard(self, code: str, first: Access, second: Access, allocated: int = 0) -> Hazard:
        """Record that two accesses met without order."""
        trace = self.trace
        hazard = Hazard(
            code,
            trace.sites[first.site],
            trace.sites[second.site],
            trace.lanes[first.lane],
            trace.lanes[second.lane],
            "staged" if (first.agent, first.epoch) in self._staged else "write" if first.write else "read",
            "write" if second.write else "read",
            max(0, min(first.end, second.end) - max(first.start, second.start)),
            trace.sites[allocated],
        )
        trace.hazards.append(hazard)
        now = self.host.now_ns
        self._row(Kind.HAZARD, second.lane, self._name(code), second.site, now, now, now, len(trace.hazards) - 1)
        return hazard

    # ------------------------------------------------------------------ notes

    def note(self, host: HostThread, note: Note, site: int | None = None, again: bool = False) -> None:
        """Record a fact that a check needs; `site` is the number of its line, where that is known.

        What comes `again` in each step of a long run is one entry of the trace's notes, if it is among the latest.
        """
        notes = self.trace.notes
        number = len(notes)
        if again and note in notes[-LATEST_NOTES:]:
            number = notes.index(note, max(0, number - LATEST_NOTES))
        else:
            notes.append(note)
        if site is None:
            site = self.trace.sites.number(note.site)
        now = host.now_ns
        self._row(Kind.NOTE, self._host_lane(host), self._name(note.code), site, now, now, now, number)

    def mark(self, host: HostThread, kind: Kind, name: str, value: int, site: int = 0, duration_ns: int = 0) -> None:
        """Record something of the host: a clock read, a step, a pause. It moves no time."""
        now = host.now_ns
        self._row(kind, self._host_lane(host), self._name(name), site, now - duration_ns, now - duration_ns, now, value)

    def record_of(self, row: Row) -> Record:
        """A row with its table entries."""
        kind, lane, signature, site, *times = row
        trace = self.trace
        return Record(Kind(kind), trace.lanes[lane], trace.signatures[signature], trace.sites[site], *times)

    # ------------------------------------------------------------------ rows

    def lane(self, host: HostThread, stream: Stream) -> int:
        """The number of the lane of a stream as this host thread uses it."""
        lane = host.lanes.get(stream)
        if lane is None:
            lane = host.lanes[stream] = self.trace.lanes.number(Lane(stream.device, stream.index, host.index))
        return lane

    def _host_lane(self, host: HostThread) -> int:
        lane = host.lanes.get(None)
        if lane is None:
            lane = host.lanes[None] = self.trace.lanes.number(Lane(-1, 0, host.index))
        return lane

    def _name(self, name: str) -> int:
        number = self._names.get(name)
        if number is None:
            number = self._names[name] = self.trace.signatures.number(Signature(name))
        return number

    def _row(
        self, kind: Kind, lane: int, signature: int, site: int, issued: int, start: int, end: int, value: int
    ) -> None:
        self.trace.rows.buffer.extend((int(kind), lane, signature, site, issued, start, end, value))
