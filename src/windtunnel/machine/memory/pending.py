"""Blocks that other streams still use: a free waits for events on those streams.

A storage dies on any thread and in the middle of anything, so its block is only queued, and freed by whoever decides
about memory next. The events are those of the death: they mark where the streams stood then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from windtunnel.machine.memory.blocks import PENDING, Block, PrivatePool
from windtunnel.machine.memory.heap import Heap

AnyBlock = TypeVar("AnyBlock")
StreamId = TypeVar("StreamId")
RecordedStream = TypeVar("RecordedStream", contravariant=True)


class EventSource(Protocol[RecordedStream]):
    """CUDA events as the allocators need them. A token is any object but None.

    A stream is a number of the device; to the allocator of the host's memory a pair of a device and that.
    """

    def record(self, stream: RecordedStream) -> object:
        """Record an event on a stream. It must not take a lock: storages die while another thread holds it."""

    def done(self, token: object) -> bool:
        """Whether all work before the event is complete (`cudaEventQuery`)."""

    def synchronize(self, token: object) -> None:
        """Make the host wait for the event (`cudaEventSynchronize`)."""

    def awaited(self, accesses: object, tokens: Sequence[object]) -> object:
        """What of the accesses to a block (`Block.accesses`) may go on when these events are complete."""


class InstantEvents:
    """Events of a device on which all work is complete at once."""

    def record(self, stream: object) -> object:
        """Record an event."""
        return stream

    def done(self, token: object) -> bool:
        """Always complete."""
        return True

    def synchronize(self, token: object) -> None:
        """Nothing to wait for."""

    def awaited(self, accesses: object, tokens: Sequence[object]) -> object:
        """All are complete."""
        return None


class Frees(deque[AnyBlock], Generic[AnyBlock, StreamId]):
    """Blocks whose storages died. It has a `__dict__`, so that `append` can be watched."""

    def __init__(self, events: EventSource[StreamId]) -> None:
        super().__init__()
        self._events = events

    def record(self, uses: dict[StreamId, object]) -> None:
        """Record an event on each stream that used a block, where there is none yet; do this before `append`."""
        for stream, token in uses.items():
            if token is None:
                uses[stream] = self._events.record(stream)


class PendingFrees:
    """Freed blocks that streams other than their own may still use.

    While a graph is captured no event may be queried, so frees that would need one wait until no capture is underway;
    uses that were recorded during the capture are then complete and need no event.
    """

    def __init__(self, heap: Heap, events: EventSource[int] | None = None) -> None:
        self.events: EventSource[int] = events or InstantEvents()
        self.frees: Frees[Block, int] = Frees(self.events)
        self.captures = 0
        self.waiting = 0
        self._heap = heap
        self._queues: dict[int, deque[tuple[object, Block]]] = {}
        self._deferred: list[Block] = []
        self._captured_uses: dict[Block, set[int]] = {}

    def record(self, block: Block, stream: int) -> None:
        """Another stream uses a block: `Tensor.record_stream`."""
        if stream == block.stream:
            return
        if block.uses is None:
            block.uses = {}
        block.uses[stream] = None
        if self.captures:
            self._captured_uses.setdefault(block, set()).add(stream)

    def add(self, block: Block) -> None:
        """A block with recorded uses was freed: queue events, or defer them until no capture is underway."""
        block.state = PENDING
        for counters in (self._heap.every, block.shelf.counters):
            counters.pending += 1
            counters.pending_bytes += block.size
        self.waiting += 1
        if self.captures:
            self._deferred.append(block)
        else:
            self._insert_events(block)

    def _insert_events(self, block: Block) -> None:
        uses, block.uses = block.uses or {}, None
        self.frees.record(uses)
        for stream, token in uses.items():
            block.events += 1
            self._queues.setdefault(stream, deque()).append((token, block))
        if block.accesses is not None:
            block.accesses = self.events.awaited(block.accesses, list(uses.values()))

    def _insert_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for block in deferred:
            captured = self._captured_uses.pop(block, ())
            block.uses = {stream: None for stream in block.uses or () if stream not in captured}
            self._insert_events(block)
            if block.events == 0:
                self._finish(block)

    def _finish(self, block: Block) -> None:
        """The last event of a pending block is complete."""
        self._heap.complete_free(block)
        self.waiting -= 1

    def process(self) -> None:
        """Free the blocks whose events are complete; each stream is looked at up to its first incomplete event."""
        if self.captures:
            return
        if self._deferred:
            self._insert_deferred()
        done = self.events.done
        for stream in list(self._queues):
            queue = self._queues[stream]
            while queue and done(queue[0][0]):
                block = queue.popleft()[1]
                block.events -= 1
                if block.events == 0:
                    self._finish(block)
            if not queue:
                del self._queues[stream]

    def synchronize(self, pool: PrivatePool | None = None) -> None:
        """Wait for all outstanding events (of one private pool, or all) and free their blocks."""
        self._heap.statistics.num_sync_all_streams += 1
        self._insert_deferred()
        for stream in list(self._queues):
            kept: deque[tuple[object, Block]] = deque()
            for token, block in self._queues.pop(stream):
                if pool is not None and block.shelf.pool.private is not pool:
                    kept.append((token, block))
                    continue
                self.events.synchronize(token)
                block.events -= 1
                if block.events == 0:
                    self._finish(block)
            if kept:
                self._queues[stream] = kept

    def synchronize_stream(self, stream: int) -> None:
        """Wait for the work of one stream."""
        self.events.synchronize(self.events.record(stream))

    def blocks(self) -> list[Block]:
        """Freed blocks that still wait for other streams, in no particular order."""
        found = {id(block): block for queue in self._queues.values() for _, block in queue}
        found.update((id(block), block) for block in self._deferred)
        return [block for block in found.values() if block.state == PENDING]
