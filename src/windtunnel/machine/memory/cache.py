"""Giving cached memory back to the driver: on demand, by garbage collection, before an allocation is tried again."""

from __future__ import annotations

from windtunnel.machine.memory.blocks import DEFAULT_POOL, Block, Pool, PoolId, Shelf
from windtunnel.machine.memory.expandable import ExpandableSegments
from windtunnel.machine.memory.heap import Heap
from windtunnel.machine.memory.pending import PendingFrees
from windtunnel.machine.memory.settings import UNLIMITED


class Cache:
    """The free segments of a heap, as what may be given back."""

    def __init__(self, heap: Heap, pending: PendingFrees, expandable: ExpandableSegments) -> None:
        self._heap = heap
        self._pending = pending
        self._expandable = expandable

    def release(self, pool_id: PoolId = DEFAULT_POOL) -> None:
        """Free all cached segments of the default pool and of the private pools that nobody needs any more."""
        heap = self._heap
        if pool_id == DEFAULT_POOL and not self._pending.captures:
            self._pending.synchronize()
            self._release_pool(heap.large)
            self._release_pool(heap.small)
        for private in [pool for pool in heap.pools.values() if pool.users == 0]:
            if pool_id != DEFAULT_POOL:
                if private.pool_id != pool_id:
                    continue
                self._pending.synchronize(private)
            self._release_pool(private.small)
            self._release_pool(private.large)
            if private.segments == 0:
                del heap.pools[private.pool_id]

    def release_oversize(self, shelf: Shelf, size: int) -> bool:
        """With `max_split_size_mb`: free just enough oversize blocks for `size` bytes, the best fit or the largest."""
        limit = self._heap.settings.max_split_size
        if limit == UNLIMITED:
            return False
        wanted = max(size, limit)
        block = shelf.best_fit(wanted)
        if block is not None and _whole(block):
            self._release_segment(block)
            return True
        released = 0
        for block in reversed(shelf.ordered()):
            if released >= wanted or block.size < limit:
                break
            if _whole(block):
                released += block.size
                self._release_segment(block)
        return released >= wanted

    def collect_garbage(self, allowed: int) -> None:
        """Free the large segments that were not reused for longest, above the threshold of the `allowed` bytes."""
        heap = self._heap
        target = heap.every.reserved - int(heap.settings.garbage_collection_threshold * allowed)
        if target <= 0:
            return
        searches = heap.large.searches
        candidates = [block for block in heap.large.ordered() if _whole(block)]
        reclaimed = 0
        total_age = sum(searches - block.aged_at for block in candidates)
        while candidates and reclaimed < target:
            limit = total_age / len(candidates)
            old = [block for block in candidates if searches - block.aged_at >= limit]
            if not old:
                return
            for block in old:
                reclaimed += block.size
                total_age -= searches - block.aged_at
                self._release_segment(block)
            candidates = [block for block in candidates if searches - block.aged_at < limit]

    def _release_segment(self, block: Block) -> None:
        """`cudaFree` of a segment that is one free block."""
        heap, shelf = self._heap, block.shelf
        heap.statistics.num_device_free += 1
        heap.tell("segment_free", block.address, block.size, shelf.stream, block)
        heap.driver.free(block.address)
        heap.change_reserved(shelf, -1, -block.size)
        if block.size >= heap.settings.max_split_size:
            heap.statistics.oversize_segments.decrease()
        shelf.remove(block)
        heap.remove_segment(block.segment)

    def _release_pool(self, pool: Pool) -> None:
        """Give back all unsplit free segments of one half of a pool, by (stream, size, address)."""
        to_unmap = []
        for block in pool.ordered():
            if block.segment.expandable:
                to_unmap.append(block)
            elif _whole(block):
                self._release_segment(block)
        for block in to_unmap:
            self._expandable.unmap(block)
            if block.prev is None and block.next is None:
                self._expandable.release(block)


def _whole(block: Block) -> bool:
    """Whether a free block is all of a segment that `cudaFree` can take."""
    return block.prev is None and block.next is None and not block.segment.expandable
