"""CUDA events of a machine, as the allocators need them to know when other streams are done with a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from windtunnel.machine.order import VectorClock, awaited, join
from windtunnel.machine.stream import Event

if TYPE_CHECKING:
    from windtunnel.machine.machine import Machine


class MachineEvents:
    """Events for allocators: a block is free when the streams that used it are done with it.

    A stream is its index on the installed `device`, or, when that is None, a pair of a visible device and its index.
    """

    def __init__(self, machine: Machine, device: int | None) -> None:
        self._machine = machine
        self._device = device

    def record(self, stream: int | tuple[int, int]) -> object:
        """Record an event on a stream."""
        machine = self._machine
        event = Event(0)  # no row names it
        if isinstance(stream, tuple):
            device, index = stream
            found = machine.devices[device].streams[index]
        else:
            assert self._device is not None
            found = machine.installed[self._device].streams[stream]
        event.time_ns, event.stream = found.ready_ns, found
        event.order = {**found.order, found.agent: found.epoch}
        return event

    def done(self, token: object) -> bool:
        """Whether all work before the event is complete."""
        return isinstance(token, Event) and (token.time_ns or 0) <= self._machine.host.now_ns

    def synchronize(self, token: object) -> None:
        """Make the host wait for the event."""
        if isinstance(token, Event):
            self._machine.synchronize_event(self._machine.host, token)

    def awaited(self, accesses: object, tokens: Sequence[object]) -> object:
        """What of the accesses to a block may go on when these events are complete."""
        clock: VectorClock = {}
        for token in tokens:
            if isinstance(token, Event):
                join(clock, token.order)
        return awaited(accesses, clock)
