"""PyTorch's CUDA caching allocator over integers: same sizes, same placement, same statistics, no memory.

The rules are those of `c10/cuda/CUDACachingAllocator.cpp` (read at PyTorch 2.6 and at a main branch after 2.13):
requests are rounded to 512 bytes; up to 1 MiB they come from the small pool (2 MiB segments), above from the large
pool (20 MiB segments below 10 MiB, else multiples of 2 MiB); a free block is chosen by best fit (smallest size, then
lowest address) among the blocks of the pool and the stream; what is left is split off when at least 512 bytes (small
pool) or more than 1 MiB (large pool); freed blocks join their free neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from understudy.errors import InternalError
from understudy.machine.allocator_blocks import ALLOCATED, FREE, PENDING, SIZE_SHIFT, Block, Segment, Shelf
from understudy.machine.allocator_core import MIN_BLOCK, SMALL_SIZE
from understudy.machine.allocator_snapshot import SnapshotAllocator
from understudy.machine.oom_text import OutOfMemory


class CachingAllocator(SnapshotAllocator):
    """The caching allocator of one process on one device.

    `CachingAllocator(device, driver, settings, events, on_action, join_accesses)`: `driver` gives memory and
    addresses, `events` says when other streams are done with a freed block, `on_action` hears of every action. Callers
    keep the `Block` that `malloc` returns and give it to `free`; it may be handed out again later, as the same object.
    `Block.accesses` stays on a freed block, is shared by both pieces of a split, and joined by `join_accesses` (called
    with the two objects, when both are there) on a merge.
    """

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
            return self._hand_out(block, size, requested, context, False)
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
            every.change_split(1, remaining)
            one.change_split(1, remaining)
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
        every.handed_out(size, requested)
        one.handed_out(size, requested)
        return block

    def _malloc(self, requested: int, stream: int, context: object) -> Block:
        """The whole story of `malloc`: settings, pools, the driver, retries."""
        if self._scopes or self._waiting:
            self.process_events()
        size = self.round_size(requested)
        shelf = self._pool_for(size, stream).shelf(stream)
        expandable = self.settings.expandable_segments
        block = self._find(shelf, size, expandable)
        if block is None:
            if self._ageing:
                self._collect_garbage()
            block = self._obtain(shelf, requested, size, expandable, context)
            shelf = block.shelf
        split = self._should_split(block, size, expandable)
        return self._hand_out(block, size, requested, context, split)

    def _find(self, shelf: Shelf, size: int, expandable: bool) -> Block | None:
        """Take the best free block for `size` bytes off its shelf, if one may be used."""
        if self._ageing:
            shelf.pool.searches += 1
        block = shelf.best_fit(size)
        if block is None:
            return None
        if block.segment.expandable:
            block = self._best_expandable(shelf, block, expandable)
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
        if block is None and self._release_oversize(shelf, size):
            block = self._new_block(shelf, size, alloc_size, expandable, context)
        if block is None and not self._captures:
            self._release_cached()
            self.statistics.num_alloc_retries += 1
            block = self._new_block(shelf, size, alloc_size, expandable, context)
        if block is None:
            raise self._out_of_memory(shelf, requested, size, alloc_size)
        return block

    def _allows(self, alloc_size: int) -> bool:
        """Whether the memory fraction leaves room for one more segment."""
        return self._allowed is None or self._total_allocated + alloc_size <= self._allowed

    def _rejects(self, alloc_size: int) -> bool:
        """Whether `throw_on_cudamalloc_oom` refuses a segment before the driver is asked."""
        settings = self.settings
        if not settings.throw_on_cudamalloc_oom:
            return False
        return self._total_allocated + alloc_size > int(settings.per_process_memory_fraction * self.driver.total_bytes)

    def _new_block(self, shelf: Shelf, size: int, alloc_size: int, expandable: bool, context: object) -> Block | None:
        """One block that fills a new segment (or a newly mapped part of an expandable one); None without memory."""
        if not self._allows(alloc_size) or self._rejects(alloc_size):
            return None
        if expandable:
            return self._grow(shelf, size, context)
        address = self.driver.malloc(alloc_size)
        if address is None:
            return None
        segment = Segment(address, alloc_size, shelf, self._number_segment())
        segment.context = context
        block = segment.head = Block(address, alloc_size, shelf, segment)
        self.segments[address] = segment
        if shelf.pool.private is not None:
            shelf.pool.private.segments += 1
        self._change_reserved(shelf, 1, alloc_size)
        if alloc_size >= self.settings.max_split_size:
            self.statistics.oversize_segments.increase()
        self.statistics.num_device_alloc += 1
        if self._on_action is not None:
            self._on_action("segment_alloc", address, alloc_size, shelf.stream, block)
        return block

    def _should_split(self, block: Block, size: int, expandable: bool) -> bool:
        private = block.shelf.pool.private
        if private is not None and private.no_split:
            return False
        remaining = block.size - size
        if block.shelf.pool.small or expandable:
            return remaining >= MIN_BLOCK
        return size < self.settings.max_split_size and remaining > SMALL_SIZE

    def _out_of_memory(
        self, shelf: Shelf, requested: int, size: int, alloc_size: int, rejected: bool = False
    ) -> OutOfMemory:
        """Count the failure, tell the history, and describe it."""
        free = self.driver.free_bytes
        if not rejected:
            self.statistics.num_ooms += 1
            if self._on_action is not None:
                self._on_action("oom", free, size, shelf.stream, None)
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
            process_bytes=self.driver.total_bytes - free,
            allowed_bytes=self._allowed,
            pool_bytes=sum(pool.free_bytes for pool in self.pools.values()),
            rejected=rejected,
            expandable_segments=self.settings.expandable_segments,
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
            self._complete_free(block)
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
            every.change_split(1, size)
            one.change_split(1, size)

    def _free(self, block: Block) -> None:
        """`free` with history, other streams or a capture; the counts of allocations are already down."""
        if self._on_action is not None:
            self._on_action("free_requested", block.address, block.requested, block.stream, block)
        if block.size >= self.settings.max_split_size:
            self.statistics.oversize_allocations.decrease()
        if block.uses is None:
            self._complete_free(block)
            return
        block.state = PENDING
        for counters in (self._all, block.shelf.counters):
            counters.pending += 1
            counters.pending_bytes += block.size
        self._wait_for_streams(block)

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
