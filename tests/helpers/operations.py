"""Operations given as data, and `submit`, which carries them out on a machine: for tests without a framework.

Storages and events are named by any hashable value that the test chooses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakKeyDictionary

from windtunnel.machine.clock import HostThread
from windtunnel.machine.machine import Machine, Range
from windtunnel.machine.memory.blocks import Block
from windtunnel.machine.order import ANYWHERE, Accesses
from windtunnel.machine.stream import Event, Stream
from windtunnel.trace.kineto import copy_name
from windtunnel.trace.operation import UNKNOWN_SITE, Kind, Signature, Site
from windtunnel.trace.trace import Record


class Kernel(NamedTuple):
    """A computation on one stream; `reads` and `writes` are storages or (storage, first byte, end byte) ranges."""

    name: str
    stream: int = 0
    device: int = 0
    signature: Signature | None = None
    duration_ns: int | None = None
    reads: frozenset[object] = frozenset()
    writes: frozenset[object] = frozenset()
    site: Site = UNKNOWN_SITE


class Copy(NamedTuple):
    """A transfer. A device of -1 is the host; `pinned` says whether the host side is page-locked.

    `stream` belongs to `device`, the side whose stream carries the copy.
    """

    source: int
    destination: int
    size_bytes: int
    device: int = 0
    stream: int = 0
    pinned: bool = False
    blocking: bool = True
    reads: frozenset[object] = frozenset()
    writes: frozenset[object] = frozenset()
    site: Site = UNKNOWN_SITE


class Collective(NamedTuple):
    """A collective operation of one rank; `ranks` is the group's size, `size_bytes` this rank's input."""

    name: str
    size_bytes: int
    ranks: int
    device: int = 0
    stream: int = 0
    reads: frozenset[object] = frozenset()
    writes: frozenset[object] = frozenset()
    site: Site = UNKNOWN_SITE


class EventRecord(NamedTuple):
    """Record `event` on a stream: it completes when all work before it on that stream has.

    Whether it tells the time is for its first record to say.
    """

    event: int
    stream: int = 0
    device: int = 0
    site: Site = UNKNOWN_SITE
    timed: bool = False


class EventWait(NamedTuple):
    """Make a stream wait for the latest record of `event` at the time of this call."""

    event: int
    stream: int = 0
    device: int = 0
    site: Site = UNKNOWN_SITE


class Synchronize(NamedTuple):
    """Make the host wait: for one event, one stream, or (both None) the whole device."""

    device: int = 0
    stream: int | None = None
    event: int | None = None
    name: str = "cudaDeviceSynchronize"
    site: Site = UNKNOWN_SITE


class Allocate(NamedTuple):
    """Take device memory for `storage` from the caching allocator, on a stream."""

    storage: int
    size_bytes: int
    device: int = 0
    stream: int = 0
    site: Site = UNKNOWN_SITE


class Free(NamedTuple):
    """Give a storage's device memory back to the caching allocator."""

    storage: int
    site: Site = UNKNOWN_SITE


Operation = Kernel | Copy | Collective | EventRecord | EventWait | Synchronize | Allocate | Free


class Memory:
    """A storage of an operation given as data."""

    __slots__ = ("accesses", "block", "device")

    def __init__(self) -> None:
        self.accesses: Accesses | None = None
        self.block: Block | None = None
        self.device = -1


class Submission:
    """The names that operations use (storages, events, stream numbers), and what they stand for on one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._storages: dict[object, Memory] = {}
        self._events: dict[int, Event] = {}

    def carry_out(self, operation: Operation, host: HostThread) -> None:
        """Submit one operation from a host thread."""
        machine = self.machine
        match operation:
            case Kernel():
                self._kernel(host, operation)
            case Copy():
                self._copy(host, operation)
            case Collective():
                stream = self._stream(operation.device, operation.stream)
                site = self._site(operation.site)
                call = Signature(operation.name, detail=(("ranks", operation.ranks),))
                machine.collective(host, stream, call, operation.size_bytes, site)
                self._order(host, stream, operation.reads, operation.writes, site)
            case EventRecord(event, stream_index, device, site, timed):
                machine.record(host, self._event(event, timed), self._stream(device, stream_index), self._site(site))
            case EventWait(event, stream_index, device, site):
                machine.wait_event(host, self._event(event), self._stream(device, stream_index), self._site(site))
            case Synchronize():
                self._synchronize(host, operation)
            case Allocate(storage, size_bytes, device, stream_index):
                memory = self._memory(storage)
                stream = self._stream(device, stream_index)
                memory.block = machine.devices[device].allocator.malloc(size_bytes, stream.index)
                memory.device = device
            case Free(storage):
                memory = self._storages.pop(storage)
                if memory.block is not None:
                    machine.devices[memory.device].allocator.free(memory.block)

    def _kernel(self, host: HostThread, kernel: Kernel) -> None:
        machine = self.machine
        stream = self._stream(kernel.device, kernel.stream)
        cost = machine.price(machine.devices[kernel.device], kernel.signature or Signature(kernel.name))
        if kernel.duration_ns is not None:
            cost.duration_ns = kernel.duration_ns
        site = self._site(kernel.site)
        machine.launch(host, stream, cost, site)
        self._order(host, stream, kernel.reads, kernel.writes, site)

    def _copy(self, host: HostThread, copy: Copy) -> None:
        machine = self.machine
        stream = self._stream(copy.device, copy.stream)
        site = self._site(copy.site)
        signature = Signature(copy_name(copy.source, copy.destination, copy.pinned))
        machine.copy(host, stream, signature, copy.size_bytes, copy.source, copy.destination, copy.pinned, site)
        self._order(host, stream, copy.reads, copy.writes, site)
        if copy.blocking and min(copy.source, copy.destination) < 0:
            machine.synchronize_stream(host, stream, "cudaMemcpy (blocking)", site)

    def _synchronize(self, host: HostThread, wait: Synchronize) -> None:
        machine = self.machine
        site = self._site(wait.site)
        if wait.event is not None:
            machine.synchronize_event(host, self._event(wait.event), site)
        elif wait.stream is not None:
            machine.synchronize_stream(host, self._stream(wait.device, wait.stream), site=site)
        else:
            machine.synchronize_device(host, machine.devices[wait.device], wait.name, site)

    def _order(
        self, host: HostThread, stream: Stream, reads: Iterable[object], writes: Iterable[object], site: int
    ) -> None:
        self.machine.access(host, stream, map(self._range, reads), map(self._range, writes), site)

    def _range(self, what: object) -> Range:
        if isinstance(what, tuple):
            storage, start, end = what
            return self._memory(storage), start, end, None
        return self._memory(what), 0, ANYWHERE, None

    def _memory(self, name: object) -> Memory:
        return self._storages.setdefault(name, Memory())

    def _event(self, number: int, timed: bool = False) -> Event:
        if number not in self._events:
            self._events[number] = self.machine.event(self.machine.host, timed)
        return self._events[number]

    def _stream(self, device: int, index: int) -> Stream:
        streams = self.machine.devices[device].streams
        while len(streams) <= index:
            self.machine.devices[device].pool_stream()
            self.machine.begin_streams()
        return streams[index]

    def _site(self, site: Site) -> int:
        return self.machine.trace.sites.number(site)


_submissions: WeakKeyDictionary[Machine, Submission] = WeakKeyDictionary()


def submit(machine: Machine, operation: Operation, host: HostThread | None = None) -> Record | None:
    """Carry out one operation; returns the row that it left, or None when it left none."""
    submission = _submissions.get(machine)
    if submission is None:
        submission = _submissions[machine] = Submission(machine)
    before = len(machine.trace.rows)
    submission.carry_out(operation, host or machine.host)
    made = (machine.trace.rows[at] for at in range(before, len(machine.trace.rows)))
    row = next((row for row in made if row[0] != Kind.BARRIER), None)
    return None if row is None else machine.record_of(row)
