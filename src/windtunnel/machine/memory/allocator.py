"""PyTorch's CUDA caching allocator over integers: same sizes, same placement, same statistics, no memory.

The rules are those of `c10/cuda/CUDACachingAllocator.cpp` (read at PyTorch 2.6 and at a main branch after 2.13):
requests are rounded to 512 bytes; up to 1 MiB they come from the small pool (2 MiB segments), above from the large
pool (20 MiB segments below 10 MiB, else multiples of 2 MiB); a free block is chosen by best fit (smallest size, then
lowest address) among the blocks of the pool and the stream; what is left is split off when at least 512 bytes (small
pool) or more than 1 MiB (large pool); freed blocks join their free neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable

from windtunnel.errors import InternalError, UsageError
from windtunnel.machine.memory import snapshot
from windtunnel.machine.memory.blocks import (
    ALLOCATED,
    DEFAULT_POOL,
    FREE,
    SIZE_SHIFT,
    Block,
    Pool,
    PoolId,
    PrivatePool,
    Segment,
    Shelf,
)
from windtunnel.machine.memory.cache import Cache
from windtunnel.machine.memory.driver import DeviceMemory
from windtunnel.machine.memory.expandable import ExpandableSegments
from windtunnel.machine.memory.heap import MIN_BLOCK, SMALL_SIZE, Action, Heap, round_size, segment_size
from windtunnel.machine.memory.oom_text import OutOfMemory
from windtunnel.machine.memory.pending import EventSource, PendingFrees
from windtunnel.machine.memory.settings import UNLIMITED, Settings
from windtunnel.machine.memory.statistics import Statistics
from windtunnel.trace.plain import Json


class CachingAllocator:
    """The caching allocator of one process on one device.

    `driver` gives memory and addresses, `events` says when other streams are done with a freed block, `on_action` hears
    of every action. Callers keep the `Block` that `malloc` returns and give it to `free`; it may be handed out again
    later, as the same object. `frees` collects blocks whose storages died, for the owner to free. `Block.accesses`
    stays on a freed block, is shared by both pieces of a split, and joined by `join_accesses` (called with the two
    objects, when both are there) on a merge.
    """

    def __init__(
        self,
        device: int,
        driver: DeviceMemory,
        settings: Settings | None = None,
        events: EventSource[int] | None = None,
        on_action: Action | None = None,
        join_accesses: Callable[[object, object], object] | None = None,
    ) -> None:
        self.device = device
        self.driver = driver
        self.settings = settings or Settings()
        self._heap = heap = Heap(device, driver, self.settings, on_action, join_accesses)
        self._pending = PendingFrees(heap, events)
        self.frees = self._pending.frees
        self._expandable = ExpandableSegments(heap, self._pending)
        self._cache = Cache(heap, self._pending, self._expandable)
        self.statistics: Statistics = heap.statistics
        self.segments: dict[int, Segment] = heap.segments
        self.pools: dict[PoolId, PrivatePool] = heap.pools
        self._all = heap.every
        self._small_shelves = heap.small.shelves
        self._large_shelves = heap.large.shelves
        self._allowed: int | None = None
        self._scopes: list[tuple[PoolId, Callable[[int], bool] | None]] = []
        self._plain = True
        self._ageing = False
        self.set_settings(self.settings)
        self.set_memory_fraction(self.settings.per_process_memory_fraction)

    # Settings

    def set_settings(self, settings: Settings) -> None:
        """Change the settings of a running allocator (`torch.cuda.memory._set_allocator_settings`).

        The memory fraction counts only at the start, as in PyTorch; `set_memory_fraction` changes it later.
        """
        large = self._heap.large
        if settings.garbage_collection_threshold > 0.0 and not self._ageing:
            for block in large.ordered():
                block.aged_at = large.searches
        self.settings = self._heap.settings = settings
        self._rounding = any(division > 1 for division in settings.roundup_power2_divisions)
        self._limited = settings.max_split_size != UNLIMITED
        self._update()

    def set_memory_fraction(self, fraction: float) -> None:
        """`torch.cuda.set_per_process_memory_fraction`: the part of the memory that may be reserved, 0 to 1."""
        if not 0 <= fraction <= 1:
            raise UsageError(f"The memory fraction is {fraction}, but it must lie within [0, 1].")
        self._allowed = None if fraction == 1.0 else round(fraction * self.driver.total_bytes)
        self._update()

    @property
    def memory_fraction(self) -> float:
        """`torch.cuda.get_per_process_memory_fraction`."""
        return 1.0 if self._allowed is None else self._allowed / self.driver.total_bytes

    @property
    def on_action(self) -> Action | None:
        """The history hook; None (the default) costs nothing."""
        return self._heap.on_action

    @on_action.setter
    def on_action(self, hook: Action | None) -> None:
        self._heap.on_action = hook
        self._update()

    def _update(self) -> None:
        """Recompute whether the fast paths of `malloc` and `free` tell the whole story."""
        self._ageing = self._allowed is not None and self.settings.garbage_collection_threshold > 0.0
        self._plain = not (
            self._heap.on_action is not None
            or self._rounding
            or self._limited
            or self._ageing
            or self.settings.expandable_segments
            or self._heap.expandable_segments
            or self._scopes
            or self._pending.waiting
        )

    def round_size(self, requested: int) -> int:
        """The size of the block for a request, bytes."""
        if not self._rounding:
            return (requested + 511) & -512
        return round_size(requested, self.settings)

    def segment_size(self, size: int) -> int:
        """Bytes that are asked of the driver for a block of `size` bytes when no free block fits."""
        return segment_size(size, self.settings)

    # Allocation

    def malloc(self, requested: int, stream: int = 0, context: object = None) -> Block | None:
        """A block of at least `requested` bytes for work on `stream`; None for zero bytes. Raises `OutOfMemory`.

        `context` is kept on the block while it is allocated (a stack, a site); nothing reads it here.
        """
        if requested <= 0:
            return None
        if self._plain:
            size = (requested + 511) & -512
            shelf = (self._small_shelves if size <= 1048576 else self._large_shelves).get(stream)
            if shelf is not None:
                order = shelf.order
                at = bisect_left(order, size << SIZE_SHIFT)
                if at < len(order):
                    key = order.pop(at)
                    block = shelf.free.pop(key)
                    if block.size == size:
                        block.state = ALLOCATED
                        block.requested = requested
                        block.context = context
                        # `Statistics.handed_out` and `change_split`, written out: most tensors come this way.
                        one = shelf.counters
                        every = self._all
                        one.count_total += 1
                        one.bytes_total += size
                        one.requested_total += requested
                        every.count_total += 1
                        every.bytes_total += size
                        every.requested_total += requested
                        one.count = now = one.count + 1
                        if now > one.count_peak:
                            one.count_peak = now
                        one.bytes = now = one.bytes + size
                        if now > one.bytes_peak:
                            one.bytes_peak = now
                        one.requested = now = one.requested + requested
                        if now > one.requested_peak:
                            one.requested_peak = now
                        every.count = now = every.count + 1
                        if now > every.count_peak:
                            every.count_peak = now
                        every.bytes = now = every.bytes + size
                        if now > every.bytes_peak:
                            every.bytes_peak = now
                        every.requested = now = every.requested + requested
                        if now > every.requested_peak:
                            every.requested_peak = now
                        if block.prev is not None or block.next is not None:
                            one.split -= 1
                            one.split_bytes -= size
                            every.split -= 1
                            every.split_bytes -= size
                        return block
                    return self._cut(block, size, requested, context)
        return self._malloc(requested, stream, context)

    def _cut(self, block: Block, size: int, requested: int, context: object) -> Block:
        """`malloc` where a larger free block serves, just taken off its shelf, and no setting has a say."""
        shelf = block.shelf
        remaining = block.size - size
        if remaining <= SMALL_SIZE if size > SMALL_SIZE else remaining < MIN_BLOCK:
            if remaining < 0:  # another thread took the one that was found
                shelf.add(block)
                return self._malloc(requested, shelf.stream, context)
            return self._heap.hand_out(block, size, requested, context, False)
        rest = block
        address = rest.address
        segment = rest.segment
        block = Block(address, size, shelf, segment, ALLOCATED)
        block.accesses = rest.accesses
        block.requested = requested
        block.context = context
        before = block.prev = rest.prev
        if before is None:
            segment.head = block
            segment.context = None
        else:
            before.next = block
        every, one = self._all, shelf.counters
        if before is None and rest.next is None:
            self.statistics.change_split(one, 1, remaining)
        else:
            every.split_bytes -= size
            one.split_bytes -= size
        block.next = rest
        rest.prev = block
        rest.address = address = address + size
        rest.size = remaining
        rest.aged_at = shelf.pool.searches
        key = remaining << SIZE_SHIFT | address
        shelf.free[key] = rest
        insort(shelf.order, key)
        self.statistics.handed_out(one, size, requested)
        return block

    def _malloc(self, requested: int, stream: int, context: object) -> Block:
        """The whole story of `malloc`: settings, pools, the driver, retries."""
        if self._scopes or self._pending.waiting:
            self.process_events()
        size = self.round_size(requested)
        shelf = self._pool_for(size, stream).shelf(stream)
        expandable = self.settings.expandable_segments
        block = self._find(shelf, size, expandable)
        if block is None:
            if self._ageing and self._allowed is not None:
                self._cache.collect_garbage(self._allowed)
            block = self._obtain(shelf, requested, size, expandable, context)
            shelf = block.shelf
        split = self._should_split(block, size, expandable)
        return self._heap.hand_out(block, size, requested, context, split)

    def _find(self, shelf: Shelf, size: int, expandable: bool) -> Block | None:
        """Take the best free block for `size` bytes off its shelf, if one may be used."""
        if self._ageing:
            shelf.pool.searches += 1
        block = shelf.best_fit(size)
        if block is None:
            return None
        if block.segment.expandable:
            block = self._expandable.best(shelf, block, expandable)
            if block is None:
                return None
        if self._limited:
            limit = self.settings.max_split_size
            if size < limit <= block.size:
                return None
            if size >= limit and block.size >= size + self.settings.max_non_split_rounding_size:
                return None
        shelf.remove(block)
        return block

    def _obtain(self, shelf: Shelf, requested: int, size: int, expandable: bool, context: object) -> Block:
        """A block from the driver, after giving cached memory back as often as the rules allow."""
        alloc_size = self.segment_size(size)
        block = self._new_block(shelf, size, alloc_size, expandable, context)
        if block is not None:
            return block
        if self._allows(alloc_size) and self._rejects(alloc_size):
            self.statistics.num_oom_rejections += 1
            raise self._out_of_memory(shelf, requested, size, alloc_size, rejected=True)
        block = self._from_fallback_pools(shelf, size)
        if block is None and self._cache.release_oversize(shelf, size):
            block = self._new_block(shelf, size, alloc_size, expandable, context)
        if block is None and not self._pending.captures:
            self.empty_cache()
            self.statistics.num_alloc_retries += 1
            block = self._new_block(shelf, size, alloc_size, expandable, context)
        if block is None:
            raise self._out_of_memory(shelf, requested, size, alloc_size)
        return block

    def _allows(self, alloc_size: int) -> bool:
        """Whether the memory fraction leaves room for one more segment."""
        return self._allowed is None or self._all.reserved + alloc_size <= self._allowed

    def _rejects(self, alloc_size: int) -> bool:
        """Whether `throw_on_cudamalloc_oom` refuses a segment before the driver is asked."""
        settings = self.settings
        if not settings.throw_on_cudamalloc_oom:
            return False
        return self._all.reserved + alloc_size > int(settings.per_process_memory_fraction * self.driver.total_bytes)

    def _new_block(self, shelf: Shelf, size: int, alloc_size: int, expandable: bool, context: object) -> Block | None:
        """One block that fills a new segment (or a newly mapped part of an expandable one); None without memory."""
        if not self._allows(alloc_size) or self._rejects(alloc_size):
            return None
        if expandable:
            block = self._expandable.grow(shelf, size, context)
            self._update()
            return block
        address = self.driver.malloc(alloc_size)
        if address is None:
            return None
        segment = self._heap.add_segment(address, alloc_size, shelf)
        segment.context = context
        block = segment.head = Block(address, alloc_size, shelf, segment)
        self._heap.change_reserved(shelf, 1, alloc_size)
        if alloc_size >= self.settings.max_split_size:
            self.statistics.oversize_segments.increase()
        self.statistics.num_device_alloc += 1
        self._heap.tell("segment_alloc", address, alloc_size, shelf.stream, block)
        return block

    def _should_split(self, block: Block, size: int, expandable: bool) -> bool:
        private = block.shelf.pool.private
        if private is not None and private.no_split:
            return False
        remaining = block.size - size
        if block.shelf.pool.small or expandable:
            return remaining >= MIN_BLOCK
        return size < self.settings.max_split_size and remaining > SMALL_SIZE

    def refused(self, requested: int, stream: int = 0) -> OutOfMemory:
        """The error of a request that is refused whatever is free: a fault on purpose."""
        size = self.round_size(requested)
        return self._out_of_memory(self._pool_for(size, stream).shelf(stream), requested, size, self.segment_size(size))

    def _out_of_memory(
        self, shelf: Shelf, requested: int, size: int, alloc_size: int, rejected: bool = False
    ) -> OutOfMemory:
        """Count the failure, tell the history, and describe it."""
        free = self.driver.free_bytes
        if not rejected:
            self.statistics.num_ooms += 1
            self._heap.tell("oom", free, size, shelf.stream, None)
        return OutOfMemory(
            device=self.device,
            requested=requested,
            size=size,
            alloc_size=alloc_size,
            stream=shelf.stream,
            device_total=self.driver.total_bytes,
            device_free=free,
            allocated=self._all.bytes,
            reserved=self._all.reserved,
            process_bytes=self.driver.occupied_bytes + self.driver.reserved_bytes,
            allowed_bytes=self._allowed,
            pool_bytes=sum(pool.free_bytes for pool in self.pools.values()),
            rejected=rejected,
            expandable_segments=self.settings.expandable_segments,
            others=tuple(self.driver.others()),
        )

    # Free

    def free(self, block: Block) -> None:
        """Give a block back. It is reused when the other streams that were recorded on it are done with it."""
        if block.state != ALLOCATED:
            raise InternalError(f"The block at {block.address:#x} was freed twice.")
        size = block.size
        shelf = block.shelf
        one = shelf.counters
        every = self._all
        one.count -= 1
        one.bytes -= size
        every.count -= 1
        every.bytes -= size
        if block.uses is not None or not self._plain:
            self._free(block)
            return
        before = block.prev
        after = block.next
        if (before is not None and before.state == FREE) or (after is not None and after.state == FREE):
            self._heap.complete_free(block)
            return
        requested = block.requested
        one.requested -= requested
        every.requested -= requested
        block.state = FREE
        block.context = None
        key = size << SIZE_SHIFT | block.address
        shelf.free[key] = block
        insort(shelf.order, key)
        if before is not None or after is not None:
            self.statistics.change_split(one, 1, size)

    def drain(self, blocks: deque[Block]) -> None:
        """Give back blocks, first come, first served; others may be added meanwhile."""
        while blocks:
            self.free(blocks.popleft())

    def _free(self, block: Block) -> None:
        """`free` with history, other streams or a capture; the counts of allocations are already down."""
        self._heap.tell("free_requested", block.address, block.requested, block.stream, block)
        if block.size >= self.settings.max_split_size:
            self.statistics.oversize_allocations.decrease()
        if block.uses is None:
            self._heap.complete_free(block)
            return
        self._plain = False
        self._pending.add(block)

    # Other streams, and captures of graphs

    def record_stream(self, block: Block, stream: int) -> None:
        """`Tensor.record_stream`: the block may be reused only when work queued on `stream` at its free is done."""
        self._pending.record(block, stream)

    def process_events(self) -> None:
        """Free the blocks that waited for other streams, as far as those are done."""
        self._pending.process()
        self._update()

    def pending_blocks(self) -> list[Block]:
        """Freed blocks that still wait for other streams, in no particular order."""
        return self._pending.blocks()

    def mark_capture_begin(self) -> None:
        """A graph capture starts on this device: until its end no event is queried and nothing is given back."""
        self._pending.captures += 1

    def mark_capture_end(self) -> None:
        """A graph capture ended."""
        self._pending.captures -= 1

    # Pools of their own: of captured graphs and of `torch.cuda.MemPool`

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
        """From here on, allocations on the streams that `streams` accepts (None: all) come from the pool.

        The newest scope that accepts a stream wins. `use_mem_pool` is a scope alone, a captured graph a scope and a
        capture (`mark_capture_begin`).
        """
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
        return self._heap.small if size <= SMALL_SIZE else self._heap.large

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

    # What is known

    def memory_allocated(self) -> int:
        """Bytes of allocated blocks (`torch.cuda.memory_allocated`)."""
        return self._all.bytes

    def memory_reserved(self) -> int:
        """Bytes held from the driver (`torch.cuda.memory_reserved`)."""
        return self._all.reserved

    def memory_stats(self) -> dict[str, object]:
        """The nested dictionary that `torch._C._cuda_memoryStats` returns."""
        return self.statistics.to_dict()

    def reset_peak(self) -> None:
        """`torch.cuda.reset_peak_memory_stats`."""
        self.statistics.reset_peak()

    def reset_accumulated(self) -> None:
        """`torch.cuda.reset_accumulated_memory_stats`."""
        self.statistics.reset_accumulated()

    def empty_cache(self, pool_id: PoolId = DEFAULT_POOL) -> None:
        """`torch.cuda.empty_cache`: give every unsplit free segment back, of all pools that may, or of one pool."""
        self._cache.release(pool_id)
        self._update()

    def snapshot(self, pool_id: PoolId | None = None, frames: snapshot.Frames = snapshot.no_frames) -> Json:
        """Segments by address and the settings, as in `torch.cuda.memory._snapshot`; of one pool, or of all.

        `frames` turns the `context` of a block or segment into the frames of a stack: filename, line, name.
        """
        return snapshot.describe(self._heap, pool_id, frames)

    def restore(self, segments: Iterable[Json]) -> dict[int, Block]:
        """Start from the segments of a snapshot, at their addresses; the allocated blocks by address.

        The allocator must be empty. Blocks that wait for other streams count as allocated.
        """
        live = snapshot.Restoring(self._heap, self.create_pool).run(segments)
        self._update()
        return live
