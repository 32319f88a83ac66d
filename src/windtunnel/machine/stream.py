"""Streams and events: queues of work on one device, and marks in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Protocol

from windtunnel.machine.order import VectorClock
from windtunnel.trace.operation import Kind


class Recording(Protocol):
    """The CUDA graph that work on a captured stream goes into; `machine.capture` has the one that there is."""

    active: bool
    valid: bool
    error: Callable[[str], Exception]

    def forbids(self, thread: Hashable) -> bool:
        """Whether a thread may not make potentially unsafe calls."""

    def add(
        self,
        stream: Stream,
        kind: Kind,
        signature: int,
        site: int,
        duration_ns: int,
        size_bytes: int,
        occupancy: int = 0,
        engine: str = "",
        peak_ns: float = 0.0,
    ) -> int:
        """Record work on a captured stream."""

    def record(self, event: Event, stream: Stream) -> None:
        """An event is recorded on a captured stream."""

    def wait(self, event: Event, stream: Stream) -> None:
        """A stream waits for an event of the capture."""

    def barrier(self, first: Stream, second: Stream) -> None:
        """`second` waits for `first`."""

    def fail(self, text: str) -> Exception:
        """Make the capture invalid; returns the exception to raise."""


class Stream:
    """A queue of work: what is submitted to it runs in order.

    `agent` is its number in vector clocks, `epoch` counts its work, `order` is all that its next work is ordered
    after. `ready_ns` is when all that was submitted so far is done, `busy_ns` when its last kernel ends. `capture` is
    the CUDA graph that its work goes into at the moment. `marks` are the ends of every so many launches of late, for
    the queue's limit. `number` is its place in the pool of its priority, -1 where it is of none.
    """

    __slots__ = (
        "agent",
        "blocking",
        "busy_ns",
        "capture",
        "device",
        "epoch",
        "index",
        "marks",
        "number",
        "order",
        "priority",
        "ready_ns",
    )

    def __init__(
        self, device: int, index: int, agent: int, priority: int = 0, blocking: bool = False, number: int = -1
    ) -> None:
        self.device = device
        self.index = index
        self.number = number
        self.agent = agent
        self.priority = priority
        self.blocking = blocking
        self.ready_ns = 0
        self.busy_ns = 0
        self.epoch = 0
        self.order: VectorClock = {}
        self.capture: Recording | None = None
        self.marks: deque[int] = deque()

    def __repr__(self) -> str:
        return f"Stream(device={self.device}, index={self.index})"


class Event:
    """A mark in a stream, `timed` where it tells the time.

    `time_ns` is when the latest record completes; None while it was never recorded.
    """

    __slots__ = ("capture", "number", "order", "stream", "time_ns", "timed")

    def __init__(self, number: int, timed: bool = False) -> None:
        self.number = number
        self.timed = timed
        self.time_ns: int | None = None
        self.order: VectorClock = {}
        self.stream: Stream | None = None
        self.capture: Recording | None = None  # the CUDA graph in whose capture it was recorded last
