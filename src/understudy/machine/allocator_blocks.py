"""Blocks of device memory and the shelves that hold the free ones, found by best fit.

A segment is one range got from the driver; it is cut into a linked list of blocks. Free blocks of one pool and one
stream lie on a shelf: a heap of addresses a size (`bins`), an index of the sizes, and a table from address to block.
Taking a block of a size that is there costs two dictionary look-ups and a heap pop; best fit costs one bisection
more. Heaps may hold stale addresses (of blocks that were merged away); they are dropped when met, and all at once
when they outnumber the free blocks, so every operation is O(log n) amortized.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

from understudy.machine.allocator_stats import Counters, PoolStatistics

FREE, ALLOCATED, PENDING, UNMAPPED = range(4)
"""States of a block: on a shelf; handed out; freed but in use by other streams; address space without memory."""

PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)

_CHUNK = 512


class SizeIndex:
    """The distinct sizes of a shelf in order, in chunks so that an insertion never moves more than a few kilobytes."""

    __slots__ = ("chunks", "last")

    def __init__(self) -> None:
        self.chunks: list[list[int]] = []
        self.last: list[int] = []

    def add(self, size: int) -> None:
        """Insert a size that is not there."""
        if not self.chunks:
            self.chunks.append([size])
            self.last.append(size)
            return
        position = min(bisect_left(self.last, size), len(self.last) - 1)
        chunk = self.chunks[position]
        insort(chunk, size)
        if len(chunk) > _CHUNK:
            half = len(chunk) // 2
            self.chunks.insert(position + 1, chunk[half:])
            self.last.insert(position, chunk[half - 1])
            del chunk[half:]
            position += 1
        self.last[position] = self.chunks[position][-1]

    def remove(self, size: int) -> None:
        """Remove a size that is there."""
        position = bisect_left(self.last, size)
        chunk = self.chunks[position]
        del chunk[bisect_left(chunk, size)]
        if chunk:
            self.last[position] = chunk[-1]
        else:
            del self.chunks[position]
            del self.last[position]

    def at_least(self, size: int) -> int:
        """The smallest size that is not below `size`, or 0."""
        position = bisect_left(self.last, size)
        if position == len(self.last):
            return 0
        chunk = self.chunks[position]
        return chunk[bisect_left(chunk, size)]

    def __iter__(self) -> Iterator[int]:
        for chunk in self.chunks:
            yield from chunk


class Segment:
    """One range of addresses got from the driver.

    `head` is its first block, `context` the caller's note about it, `memory` the caller's bytes behind it.
    """

    __slots__ = ("address", "context", "expandable", "head", "memory", "number", "page_bytes", "shelf", "size")

    def __init__(self, address: int, size: int, shelf: Shelf, number: int, page_bytes: int = 0) -> None:
        self.address = address
        self.size = size
        self.shelf = shelf
        self.number = number
        self.page_bytes = page_bytes
        self.expandable = page_bytes > 0
        self.context: object = None
        self.memory: Any = None
        self.head: Block

    def blocks(self) -> Iterator[Block]:
        """The segment's blocks by address."""
        block: Block | None = self.head
        while block is not None:
            yield block
            block = block.next


class Block:
    """A piece of a segment.

    `size` is the rounded size in bytes, `requested` what the caller asked for, `uses` the other streams that were
    recorded on it, `accesses` an opaque object of the machine that outlives the block's free.
    """

    __slots__ = (
        "accesses",
        "address",
        "aged_at",
        "context",
        "events",
        "next",
        "prev",
        "requested",
        "segment",
        "shelf",
        "size",
        "state",
        "uses",
    )

    def __init__(self, address: int, size: int, shelf: Shelf, segment: Segment, state: int = FREE) -> None:
        self.address = address
        self.size = size
        self.shelf = shelf
        self.segment = segment
        self.state = state
        self.requested = 0
        self.prev: Block | None = None
        self.next: Block | None = None
        self.uses: dict[int, None] | None = None
        self.events = 0
        self.context: object = None
        self.accesses: object = None
        self.aged_at = 0

    @property
    def stream(self) -> int:
        """The stream that the block belongs to."""
        return self.shelf.stream

    @property
    def pool_id(self) -> PoolId:
        """The memory pool that the block belongs to; (0, 0) is the default pool."""
        return self.shelf.pool.pool_id

    def __repr__(self) -> str:
        state = ("inactive", "active_allocated", "active_pending_free", "unmapped")[self.state]
        return f"<Block {self.address:#x} size={self.size} requested={self.requested} stream={self.stream} {state}>"


class Shelf:
    """Free blocks of one pool and one stream, found by size, then address."""

    __slots__ = ("bins", "counters", "free", "pool", "sizes", "stale", "stream", "unmapped")

    def __init__(self, pool: Pool, stream: int) -> None:
        self.pool = pool
        self.stream = stream
        self.counters = pool.counters
        self.bins: dict[int, list[int]] = {}
        self.sizes = SizeIndex()
        self.free: dict[int, Block] = {}
        self.stale = 0
        self.unmapped: list[Block] = []

    def add(self, block: Block) -> None:
        """Put a free block on the shelf."""
        size = block.size
        heap = self.bins.get(size)
        if heap is None:
            self.bins[size] = [block.address]
            self.sizes.add(size)
        else:
            heappush(heap, block.address)
        self.free[block.address] = block
        block.aged_at = self.pool.searches

    def remove(self, block: Block) -> None:
        """Take a free block off the shelf; its address may stay behind in its heap, stale."""
        del self.free[block.address]
        heap = self.bins[block.size]
        if len(heap) == 1:
            heap.pop()
        elif heap[0] == block.address:
            heappop(heap)
        else:
            self.stale += 1
            if self.stale > 64 + len(self.free):
                self.rebuild()

    def rebuild(self) -> None:
        """Drop every stale address and every empty size."""
        self.bins = {}
        for address, block in self.free.items():
            self.bins.setdefault(block.size, []).append(address)
        self.sizes = SizeIndex()
        for size, heap in self.bins.items():
            heapify(heap)
            self.sizes.add(size)
        self.stale = 0

    def best_fit(self, size: int) -> Block | None:
        """The free block with the smallest size that is not below `size`, of these the one with the lowest address."""
        bins, free, sizes = self.bins, self.free, self.sizes
        while found := sizes.at_least(size):
            heap = bins[found]
            while heap:
                block = free.get(heap[0])
                if block is not None and block.size == found:
                    return block
                heappop(heap)
                self.stale -= 1
            del bins[found]
            sizes.remove(found)
        return None

    def after(self, block: Block) -> Block | None:
        """The free block that follows `block` in the order of (size, address)."""
        later = [
            address
            for address in self.bins[block.size]
            if address > block.address and address in self.free and self.free[address].size == block.size
        ]
        if later:
            return self.free[min(later)]
        return self.best_fit(block.size + 1)

    def ordered(self) -> list[Block]:
        """All free blocks by (size, address)."""
        return sorted(self.free.values(), key=lambda block: (block.size, block.address))


class Pool:
    """The small or the large half of one memory pool."""

    __slots__ = ("counters", "pool_id", "private", "searches", "shelves", "small")

    def __init__(self, small: bool, counters: Counters, private: PrivatePool | None = None) -> None:
        self.small = small
        self.counters = counters
        self.private = private
        self.pool_id = DEFAULT_POOL if private is None else private.pool_id
        self.shelves: dict[int, Shelf] = {}
        self.searches = 0

    def shelf(self, stream: int) -> Shelf:
        """The shelf of a stream, made when first asked for."""
        shelf = self.shelves.get(stream)
        if shelf is None:
            shelf = self.shelves[stream] = Shelf(self, stream)
        return shelf

    def ordered(self) -> list[Block]:
        """All free blocks by (stream, size, address)."""
        return [block for stream in sorted(self.shelves) for block in self.shelves[stream].ordered()]


class PrivatePool:
    """A memory pool of its own: of captured graphs, or a `torch.cuda.MemPool`.

    `users` counts the graphs, pools and scopes that need it, `segments` what it holds from the driver.
    """

    __slots__ = ("large", "no_split", "pool_id", "segments", "small", "statistics", "use_on_oom", "users")

    def __init__(self, pool_id: PoolId, small: Counters, large: Counters) -> None:
        self.pool_id = pool_id
        self.small = Pool(True, small, self)
        self.large = Pool(False, large, self)
        self.users = 1
        self.segments = 0
        self.statistics = PoolStatistics()
        self.no_split = False
        self.use_on_oom = False

    def change_reserved(self, small: bool, size: int) -> None:
        """Memory was got from the driver for this pool (positive) or given back."""
        self.statistics.change("small_pool" if small else "large_pool", size)

    @property
    def free_bytes(self) -> int:
        """Bytes of the pool's free blocks."""
        pools = (self.small, self.large)
        return sum(block.size for pool in pools for shelf in pool.shelves.values() for block in shelf.free.values())
