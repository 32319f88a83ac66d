"""Operations given as data, carried out on a machine: for tests, for replays, and for whoever has no framework."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from understudy.errors import InternalError
from understudy.machine.allocator_blocks import Block
from understudy.machine.clock import HostThread
from understudy.machine.order import ANYWHERE, Accesses
from understudy.machine.stream import Event, Stream
from understudy.trace.operation import (
    Allocate,
    Collective,
    Copy,
    EventRecord,
    EventWait,
    Free,
    Kernel,
    Operation,
    Signature,
    Site,
    Synchronize,
)

if TYPE_CHECKING:
    from understudy.machine.machine import Machine, Range


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
        """Submit one operation from a host thread; raises InternalError for something that is none."""
        machine = self.machine
        match operation:
            case Kernel():
                self._kernel(host, operation)
            case Copy():
                self._copy(host, operation)
            case Collective():
                stream = self._stream(operation.device, operation.stream)
                site = self._site(operation.site)
                machine.collective(host, stream, operation.name, operation.size_bytes, operation.ranks, site)
                self._order(host, stream, operation.reads, operation.writes, site)
            case EventRecord(event, stream_index, device, site):
                machine.record(host, self._event(event), self._stream(device, stream_index), self._site(site))
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
            case _:
                raise InternalError(f"not an operation: {operation!r}")

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

    def _event(self, number: int) -> Event:
        if number not in self._events:
            self._events[number] = self.machine.event(self.machine.host)
        return self._events[number]

    def _stream(self, device: int, index: int) -> Stream:
        streams = self.machine.devices[device].streams
        while len(streams) <= index:
            self.machine.devices[device].pool_stream()
            self.machine.begin_streams()
        return streams[index]

    def _site(self, site: Site) -> int:
        return self.machine.trace.sites.number(site)


def copy_name(source: int, destination: int, pinned: bool) -> str:
    """Kineto's name of a transfer between two devices (-1 is the host)."""
    memory = "Pinned" if pinned else "Pageable"
    if source < 0:
        return f"Memcpy HtoD ({memory} -> Device)"
    if destination < 0:
        return f"Memcpy DtoH (Device -> {memory})"
    return "Memcpy DtoD (Device -> Device)" if source == destination else "Memcpy PtoP (Device -> Device)"
