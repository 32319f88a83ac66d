"""Streams and events that host code makes itself."""

from __future__ import annotations

import ctypes
import itertools
import struct
from dataclasses import dataclass

from windtunnel.machine.order import knows
from windtunnel.machine.stream import Event
from windtunnel.seam.cuda_runtime import errors
from windtunnel.seam.cuda_runtime.memory import MemoryCalls, put
from windtunnel.seam.cuda_runtime.process import Process

EVENTS_BASE = 0x5582_0000_0000
DISABLE_TIMING = 2
NON_BLOCKING = 1


@dataclass
class EventEntry:
    """An event of host code's, and the device that was current then."""

    event: Event
    device: int


class StreamCalls:
    """cudaStream... and cudaEvent..."""

    def __init__(self, process: Process, memory: MemoryCalls) -> None:
        self.process = process
        self.memory = memory
        self.events: dict[int, EventEntry] = {}
        self._handles = itertools.count(EVENTS_BASE, 16)

    def create(self, out: int, flags: int, priority: int) -> int:
        """A stream; it and the default stream wait for each other, unless the flags say otherwise."""
        self.process.begin()
        put(out, self.process.new_stream(max(-3, min(0, priority)), not flags & NON_BLOCKING))
        return errors.SUCCESS

    def destroy(self, stream: int) -> int:
        """Streams of the emulation stay; nothing may use the handle again."""
        return errors.SUCCESS if stream else errors.INVALID_HANDLE

    def synchronize(self, stream: int) -> int:
        """The host waits for a stream."""
        process = self.process
        found = process.stream(stream)
        if found.capture is not None:
            return errors.CAPTURE_UNSUPPORTED
        process.machine.synchronize_stream(process.host(), found, site=process.site())
        return process.lost()

    def query(self, stream: int) -> int:
        """Whether a stream is done."""
        done = self.process.machine.query_stream(self.process.host(), self.process.stream(stream))
        return self.process.lost() or (errors.SUCCESS if done else errors.NOT_READY)

    def wait_event(self, stream: int, event: int, flags: int) -> int:
        """A stream waits for an event."""
        made = self.events.get(event)
        if made is None:
            return errors.INVALID_HANDLE
        process = self.process
        process.machine.wait_event(process.host(), made.event, process.stream(stream), process.site())
        return errors.SUCCESS

    def priority(self, stream: int, out: int) -> int:
        """A stream's priority."""
        put(out, self.process.stream(stream).priority, 4)
        return errors.SUCCESS

    def capturing(self, stream: int, out: int) -> int:
        """Whether a graph is being captured on a stream."""
        put(out, int(self.process.stream(stream).capture is not None), 4)
        return errors.SUCCESS

    def host_function(self, stream: int, function: int, data: int) -> int:
        """A function of the host's that a stream calls: values are there at once, so it is called now. It may use what
        the stream has done, and tell others that they may."""
        found = self.process.stream(stream)
        order = {**found.order, found.agent: found.epoch}
        self.memory.managed.release(lambda agent, epoch: knows(order, agent, epoch))
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(data)
        return errors.SUCCESS

    # ------------------------------------------------------------------ events

    def create_event(self, out: int, flags: int) -> int:
        """An event."""
        self.process.begin()
        handle = next(self._handles)
        timed = not flags & DISABLE_TIMING
        self.events[handle] = EventEntry(self.process.machine.event(self.process.host(), timed), self.process.device())
        put(out, handle)
        return errors.SUCCESS

    def destroy_event(self, event: int) -> int:
        """Give an event back."""
        return errors.SUCCESS if self.events.pop(event, None) else errors.INVALID_HANDLE

    def record(self, event: int, stream: int) -> int:
        """Mark where a stream stands."""
        made = self.events.get(event)
        if made is None:
            return errors.INVALID_HANDLE
        process = self.process
        found = process.stream(stream)
        if made.device != found.device:
            return errors.INVALID_HANDLE
        process.machine.record(process.host(), made.event, found, process.site())
        return errors.SUCCESS

    def query_event(self, event: int) -> int:
        """Whether an event is done."""
        made = self.events.get(event)
        if made is None:
            return errors.INVALID_HANDLE
        return errors.SUCCESS if self.process.machine.query_event(self.process.host(), made.event) else errors.NOT_READY

    def synchronize_event(self, event: int) -> int:
        """The host waits for an event."""
        made = self.events.get(event)
        if made is None:
            return errors.INVALID_HANDLE
        self.process.machine.synchronize_event(self.process.host(), made.event, self.process.site())
        return self.process.lost()

    def elapsed(self, out: int, first: int, second: int) -> int:
        """The time between two events, in milliseconds."""
        begin, end = self.events.get(first), self.events.get(second)
        if begin is None or end is None or not (begin.event.timed and end.event.timed):
            return errors.INVALID_HANDLE
        if begin.event.time_ns is None or end.event.time_ns is None:
            return errors.INVALID_HANDLE
        machine, host = self.process.machine, self.process.host()
        if not (machine.query_event(host, begin.event) and machine.query_event(host, end.event)):
            return errors.NOT_READY
        ctypes.memmove(out, struct.pack("<f", (end.event.time_ns - begin.event.time_ns) / 1e6), 4)
        return errors.SUCCESS
