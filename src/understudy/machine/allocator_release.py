"""Giving cached memory back to the driver, and the pools that keep theirs: of graphs and of `torch.cuda.MemPool`."""

from __future__ import annotations

from collections.abc import Callable

from understudy.errors import InternalError, UsageError
from understudy.machine.alloc_conf import UNLIMITED
from understudy.machine.allocator_blocks import DEFAULT_POOL, Block, Pool, PoolId, PrivatePool, Shelf
from understudy.machine.allocator_core import SMALL_SIZE
from understudy.machine.allocator_expandable import ExpandableAllocator


class ReleasingAllocator(ExpandableAllocator):
    """The part of the allocator that frees segments: on demand, by garbage collection, before a retry."""

    def empty_cache(self, pool_id: PoolId = DEFAULT_POOL) -> None:
        """`torch.cuda.empty_cache`: give every unsplit free segment back, of all pools that may, or of one pool."""
        self._release_cached(pool_id)

    def _release_block(self, block: Block) -> None:
        """`cudaFree` of a segment that is one free block."""
        shelf = block.shelf
        self.statistics.num_device_free += 1
        if self._on_action is not None:
            self._on_action("segment_free", block.address, block.size, shelf.stream, block)
        self.driver.free(block.address)
        if shelf.pool.private is not None:
            shelf.pool.private.segments -= 1
        self._change_reserved(shelf, -1, -block.size)
        if block.size >= self.settings.max_split_size:
            self.statistics.oversize_segments.decrease()
        shelf.remove(block)
        del self.segments[block.address]

    def _release_pool_blocks(self, pool: Pool) -> None:
        """Give back all unsplit free segments of one half of a pool, by (stream, size, address)."""
        to_unmap = []
        for block in pool.ordered():
            if block.segment.expandable:
                to_unmap.append(block)
            elif block.prev is None and block.next is None:
                self._release_block(block)
        for block in to_unmap:
            self._unmap(block)
            if block.prev is None and block.next is None:
                self._release_expandable(block)

    def _release_cached(self, pool_id: PoolId = DEFAULT_POOL) -> None:
        """Free all cached segments of the default pool and of the private pools that nobody needs any more."""
        if pool_id == DEFAULT_POOL and not self._captures:
            self._synchronize_events()
            self._release_pool_blocks(self._large)
            self._release_pool_blocks(self._small)
        for private in [pool for pool in self.pools.values() if pool.users == 0]:
            if pool_id != DEFAULT_POOL:
                if private.pool_id != pool_id:
                    continue
                self._synchronize_events(private)
            self._release_pool_blocks(private.small)
            self._release_pool_blocks(private.large)
            if private.segments == 0:
                del self.pools[private.pool_id]

    def _release_oversize(self, shelf: Shelf, size: int) -> bool:
        """With `max_split_size_mb`: free just enough oversize blocks for `size` bytes, the best fit or the largest."""
        limit = self.settings.max_split_size
        if limit == UNLIMITED:
            return False
        wanted = max(size, limit)
        block = shelf.best_fit(wanted)
        if block is not None and _whole(block):
            self._release_block(block)
            return True
        released = 0
        for block in reversed(shelf.ordered()):
            if released >= wanted or block.size < limit:
                break
            if _whole(block):
                released += block.size
                self._release_block(block)
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Free the cached large segments that were not reused for longest, above the threshold of reserved memory."""
        if self._allowed is None:
            return
        threshold = int(self.settings.garbage_collection_threshold * self._allowed)
        target = self._total_allocated - threshold
        if target <= 0:
            return
        searches = self._large.searches
        candidates = [block for block in self._large.ordered() if _whole(block)]
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
                self._release_block(block)
            candidates = [block for block in candidates if searches - block.aged_at < limit]


def _whole(block: Block) -> bool:
    """Whether a free block is all of a segment that `cudaFree` can take."""
    return block.prev is None and block.next is None and not block.segment.expandable


class PooledAllocator(ReleasingAllocator):
    """The part of the allocator that sends allocations to private pools.

    A scope says which streams' allocations go to which pool; the newest matching scope wins. `use_mem_pool` is a scope
    alone, a captured graph a scope and a capture (`mark_capture_begin`).
    """

    def create_pool(self, pool_id: PoolId) -> PrivatePool:
        """Make a private pool, or count one user more of a live one."""
        private = self.pools.get(pool_id)
        if private is None:
            private = PrivatePool(pool_id, self.statistics.small, self.statistics.large)
            self.pools[pool_id] = private
            self.statistics.pools[pool_id] = private.statistics
        elif private.users == 0:
            raise InternalError(f"The memory pool {pool_id} was released and is used again.")
        else:
            private.users += 1
        return private

    def begin_allocate_to_pool(self, pool_id: PoolId, streams: Callable[[int], bool] | None = None) -> None:
        """From here on, allocations on the streams that `streams` accepts (None: all) come from the pool."""
        self.create_pool(pool_id)
        if any(scope == pool_id for scope, _ in self._scopes):
            raise UsageError("beginAllocateToPool: already recording to mempool_id")
        self._scopes.append((pool_id, streams))
        self._update()

    def end_allocate_to_pool(self, pool_id: PoolId) -> None:
        """End the scope of a pool; the pool stays until `release_pool`."""
        for position, (scope, _) in enumerate(self._scopes):
            if scope == pool_id:
                del self._scopes[position]
                self._update()
                return
        raise UsageError("endAllocatePool: not currently recording to mempool_id")

    def release_pool(self, pool_id: PoolId) -> None:
        """One user fewer; a pool without users gives its memory back when cached memory is next released."""
        private = self.pools.get(pool_id)
        if private is None or private.users == 0:
            raise InternalError(f"There is no memory pool {pool_id} to release.")
        private.users -= 1
        if private.users == 0:
            private.no_split = False

    def set_pool_options(self, pool_id: PoolId, use_on_oom: bool = False, no_split: bool = False) -> None:
        """Options of `torch.cuda.MemPool`: may serve when memory runs out; never split its segments."""
        private = self.pools[pool_id]
        private.use_on_oom = use_on_oom
        private.no_split = no_split

    def pool_use_count(self, pool_id: PoolId) -> int:
        """How many graphs, pools and scopes need a pool."""
        return self.pools[pool_id].users

    def _pool_for(self, size: int, stream: int) -> Pool:
        for pool_id, streams in reversed(self._scopes):
            if streams is None or streams(stream):
                private = self.pools[pool_id]
                return private.small if size <= SMALL_SIZE else private.large
        return self._small if size <= SMALL_SIZE else self._large

    def _from_fallback_pools(self, shelf: Shelf, size: int) -> Block | None:
        """A cached block of a pool that was made with `use_on_oom`, when the default pool cannot serve."""
        if shelf.pool.private is not None:
            return None
        for private in self.pools.values():
            if not private.use_on_oom:
                continue
            half = private.small if size <= SMALL_SIZE else private.large
            other = half.shelves.get(shelf.stream)
            block = other.best_fit(size) if other is not None else None
            if block is not None and not block.segment.expandable:
                block.shelf.remove(block)
                return block
        return None
