"""Blocks that other streams still use: a free waits for events on those streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from understudy.machine.alloc_conf import Settings
from understudy.machine.allocator_blocks import PENDING, Block, PrivatePool
from understudy.machine.allocator_core import Action, AllocatorCore
from understudy.machine.segments import DeviceMemory


class EventSource(Protocol):
    """CUDA events as the allocators need them. A token is any object; a stream is a number of the device."""

    def record(self, stream: int) -> object:
        """Record an event on a stream."""

    def done(self, token: object) -> bool:
        """Whether all work before the event is complete (`cudaEventQuery`)."""

    def synchronize(self, token: object) -> None:
        """Make the host wait for the event (`cudaEventSynchronize`)."""


class InstantEvents:
    """Events of a device on which all work is complete at once."""

    def record(self, stream: int) -> object:
        """Record an event."""
        return stream

    def done(self, token: object) -> bool:
        """Always complete."""
        return True

    def synchronize(self, token: object) -> None:
        """Nothing to wait for."""


class PendingFrees(AllocatorCore):
    """The part of the allocator that knows streams other than a block's own.

    While a graph is captured no event may be queried, so frees that would need one wait until no capture is underway;
    uses that were recorded during the capture are then complete and need no event.
    """

    def __init__(
        self,
        device: int,
        driver: DeviceMemory,
        settings: Settings | None = None,
        events: EventSource | None = None,
        on_action: Action | None = None,
        join_accesses: Callable[[object, object], object] | None = None,
    ) -> None:
        self._events: EventSource = events or InstantEvents()
        self._queues: dict[int, deque[tuple[object, Block]]] = {}
        self._deferred: list[Block] = []
        self._captured_uses: dict[Block, set[int]] = {}
        self._captures = 0
        super().__init__(device, driver, settings, on_action, join_accesses)

    def mark_capture_begin(self) -> None:
        """A graph capture starts on this device: until its end no event is queried and nothing is given back."""
        self._captures += 1
        self._update()

    def mark_capture_end(self) -> None:
        """A graph capture ended."""
        self._captures -= 1
        self._update()

    def record_stream(self, block: Block, stream: int) -> None:
        """`Tensor.record_stream`: the block may be reused only when work queued on `stream` at its free is done."""
        if stream == block.stream:
            return
        if block.uses is None:
            block.uses = {}
        block.uses[stream] = None
        if self._captures:
            self._captured_uses.setdefault(block, set()).add(stream)

    def _wait_for_streams(self, block: Block) -> None:
        """A block with recorded uses was freed: queue events, or defer them until no capture is underway."""
        self._waiting += 1
        self._plain = False
        if self._captures:
            self._deferred.append(block)
        else:
            self._insert_events(block)

    def _insert_events(self, block: Block) -> None:
        uses, block.uses = block.uses, None
        for stream in uses or ():
            block.events += 1
            self._queues.setdefault(stream, deque()).append((self._events.record(stream), block))

    def _insert_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for block in deferred:
            captured = self._captured_uses.pop(block, None)
            if captured:
                block.uses = {stream: None for stream in block.uses or () if stream not in captured}
            self._insert_events(block)
            if block.events == 0:
                self._finish(block)

    def _finish(self, block: Block) -> None:
        """The last event of a pending block is complete."""
        self._complete_free(block)
        self._waiting -= 1
        if not self._waiting:
            self._update()

    def process_events(self) -> None:
        """Free the blocks whose events are complete; each stream is looked at up to its first incomplete event."""
        if self._captures:
            return
        if self._deferred:
            self._insert_deferred()
        done = self._events.done
        for stream in list(self._queues):
            queue = self._queues[stream]
            while queue and done(queue[0][0]):
                block = queue.popleft()[1]
                block.events -= 1
                if block.events == 0:
                    self._finish(block)
            if not queue:
                del self._queues[stream]

    def _synchronize_events(self, pool: PrivatePool | None = None) -> None:
        """Wait for all outstanding events (of one private pool, or all) and free their blocks."""
        self.statistics.num_sync_all_streams += 1
        self._insert_deferred()
        for stream in list(self._queues):
            kept: deque[tuple[object, Block]] = deque()
            for token, block in self._queues.pop(stream):
                if pool is not None and block.shelf.pool.private is not pool:
                    kept.append((token, block))
                    continue
                self._events.synchronize(token)
                block.events -= 1
                if block.events == 0:
                    self._finish(block)
            if kept:
                self._queues[stream] = kept

    def pending_blocks(self) -> list[Block]:
        """Freed blocks that still wait for other streams, in no particular order."""
        found = {id(block): block for queue in self._queues.values() for _, block in queue}
        found.update((id(block), block) for block in self._deferred)
        return [block for block in found.values() if block.state == PENDING]
