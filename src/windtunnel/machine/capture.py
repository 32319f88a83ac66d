"""CUDA graphs, what a capture records.

While a stream is captured nothing on it runs: launches become nodes. A stream that waits for an event of a captured
one joins the capture, and must be joined back before the end.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from windtunnel.machine.order import VectorClock, join, knows
from windtunnel.machine.stream import Event, Stream
from windtunnel.trace.operation import Kind

UNSUPPORTED = "operation not permitted when stream is capturing"
INVALIDATED = "operation failed due to a previous error during capture"
MERGE = "operation would result in a merge of separate capture sequences"
UNJOINED = "capturing stream has unjoined work"
IMPLICIT = "operation would make the legacy stream depend on a capturing blocking stream"
ISOLATION = "dependency created on uncaptured work in another stream"
CAPTURED_EVENT = "operation not permitted on an event last recorded in a capturing stream"
ERROR_NAMES = {
    UNSUPPORTED: "cudaErrorStreamCaptureUnsupported",
    INVALIDATED: "cudaErrorStreamCaptureInvalidated",
    MERGE: "cudaErrorStreamCaptureMerge",
    UNJOINED: "cudaErrorStreamCaptureUnjoined",
    IMPLICIT: "cudaErrorStreamCaptureImplicit",
    ISOLATION: "cudaErrorStreamCaptureIsolation",
    CAPTURED_EVENT: "cudaErrorCapturedEvent",
}
"""CUDA's texts of the errors of a capture (cudaGetErrorString) and their names."""


class Node(NamedTuple):
    """One piece of captured work: on which of the captured streams, what it costs, and what it waits for.

    `after` holds the nodes on other streams that it was ordered after, by number.
    """

    kind: Kind
    line: int
    signature: int
    site: int
    duration_ns: int
    occupancy: int
    size_bytes: int
    engine: str
    after: tuple[int, ...]
    peak_ns: float


class Capture:
    """A CUDA graph: while it is captured and afterwards.

    `error` makes the framework's exception of one of the texts above. `streams` are those captured, the first the
    one on which the capture began. `mode` is CUDA's ("global", "thread_local" or "relaxed"), `thread` the one that
    began it.
    """

    def __init__(
        self, origin: Stream, error: Callable[[str], Exception], mode: str = "relaxed", thread: Hashable = 0
    ) -> None:
        self.error = error
        self.mode = mode
        self.thread = thread
        self.streams: list[Stream] = [origin]
        self.nodes: list[Node] = []
        self.valid = True
        self.active = True
        self._counts: list[int] = [0]
        self._clocks: list[VectorClock] = [{}]  # by line: for each line, how many of its nodes come before
        self._numbers: list[list[int]] = [[]]  # by line: the numbers of its nodes
        self._waiting: list[list[int]] = [[]]  # by line: nodes elsewhere that its next node comes after
        self._events: dict[int, tuple[int, VectorClock]] = {}
        origin.capture = self

    def fail(self, text: str) -> Exception:
        """Make the capture invalid; returns the exception to raise."""
        self.valid = False
        return self.error(text)

    def forbids(self, thread: Hashable) -> bool:
        """Whether a thread may not make potentially unsafe calls (cudaThreadExchangeStreamCaptureMode)."""
        return self.mode == "global" or (self.mode == "thread_local" and thread == self.thread)

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
        """Record work on a captured stream; returns 0, because it does not run. Nothing is taken once it is invalid."""
        if not self.valid:
            raise self.error(INVALIDATED)
        line = self.streams.index(stream)
        after = tuple(self._waiting[line])
        self._waiting[line] = []
        self._numbers[line].append(len(self.nodes))
        self._counts[line] += 1
        self._clocks[line][line] = self._counts[line]
        self.nodes.append(Node(kind, line, signature, site, duration_ns, occupancy, size_bytes, engine, after, peak_ns))
        return 0

    def record(self, event: Event, stream: Stream) -> None:
        """An event is recorded on a captured stream."""
        line = self.streams.index(stream)
        self._events[event.number] = line, dict(self._clocks[line])
        event.capture = self

    def wait(self, event: Event, stream: Stream) -> None:
        """A stream waits for an event of this capture, and joins it when it is not captured yet."""
        _, clock = self._events[event.number]
        self._join(self._line(stream), clock)

    def barrier(self, first: Stream, second: Stream) -> None:
        """`first` is captured here: `second` waits for it, and joins when it is not captured yet."""
        self._join(self._line(second), self._clocks[self.streams.index(first)])

    def _line(self, stream: Stream) -> int:
        """The line of a stream, which joins when it is not captured yet; CUDA captures no legacy default stream."""
        if stream.capture is None:
            if stream.index == 0:
                raise self.fail(IMPLICIT)
            stream.capture = self
            self.streams.append(stream)
            self._counts.append(0)
            self._clocks.append({})
            self._numbers.append([])
            self._waiting.append([])
        elif stream.capture is not self:
            raise self.fail(MERGE)
        return self.streams.index(stream)

    def _join(self, line: int, clock: VectorClock) -> None:
        for other, count in clock.items():
            if other != line and count > self._clocks[line].get(other, 0):
                self._waiting[line].append(self._numbers[other][count - 1])
        join(self._clocks[line], clock)

    def end(self) -> None:
        """End the capture; raises the framework's error when it was invalid or work was not joined back."""
        self.active = False
        for stream in self.streams:
            stream.capture = None
        if not self.valid:
            raise self.error(INVALIDATED)
        origin = self._clocks[0]
        if not all(knows(origin, line, count) for line, count in enumerate(self._counts)):
            raise self.fail(UNJOINED)


def refuse_unsafe(captures: Iterable[Capture], thread: Hashable) -> None:
    """Raise CUDA's error for a potentially unsafe call of a thread while a capture forbids it."""
    for capture in captures:
        if capture.forbids(thread):
            raise capture.fail(UNSUPPORTED)


def refuse_event(event: Event) -> None:
    """Raise CUDA's error when the host looks at an event that was last recorded in a capture."""
    if event.capture is not None:
        raise event.capture.fail(CAPTURED_EVENT)


def wait_event(event: Event, stream: Stream) -> bool:
    """Whether captures answer for this wait; raises CUDA's error where they forbid it."""
    if event.capture is not None:
        if not event.capture.active:
            raise event.capture.error(CAPTURED_EVENT)
        event.capture.wait(event, stream)
        return True
    if stream.capture is not None:
        if event.time_ns is not None:
            raise stream.capture.fail(ISOLATION)
        return True
    return False


def barrier(first: Stream, second: Stream) -> None:
    """Let `second` wait for all of `first`, where one is captured; raises CUDA's error where that is forbidden."""
    if first.capture is not None:
        first.capture.barrier(first, second)
    elif second.capture is not None:
        raise second.capture.fail(ISOLATION)
