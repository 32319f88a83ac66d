"""Blocks of device memory and the shelves that hold the free ones, found by best fit.

A segment is one range got from the driver; it is cut into a linked list of blocks. Free blocks of one pool and one
stream lie on a shelf: a sorted list of keys, each a block's size and address in one number, and a table from key to
block. Best fit is one bisection. Putting a block there or taking it off moves the part of the list behind it, eight
bytes a block: microseconds where there are tens of thousands.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING

from windtunnel.machine.memory.statistics import Counters, PoolStatistics

if TYPE_CHECKING:
    from typing_extensions import Buffer

FREE, ALLOCATED, PENDING, UNMAPPED = range(4)
"""States of a block: free; allocated; freed but in use by other streams; address space without memory."""

PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)

SIZE_SHIFT = 64
"""A free block's key is its size shifted by this, and its address: keys are in the order of best fit."""


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
        self.memory: Buffer | None = None
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
    recorded on it (each with an event once its storage has died), `accesses` an opaque object of the machine that
    outlives the block's free.
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
        self.uses: dict[int, object] | None = None
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


def by_address(block: Block) -> int:
    """The key of an order by address."""
    return block.address


class Shelf:
    """Free blocks of one pool and one stream, found by size, then address."""

    __slots__ = ("counters", "free", "order", "pool", "stream", "unmapped")

    def __init__(self, pool: Pool, stream: int) -> None:
        self.pool = pool
        self.stream = stream
        self.counters = pool.counters
        self.order: list[int] = []
        self.free: dict[int, Block] = {}
        self.unmapped: list[Block] = []

    def add(self, block: Block) -> None:
        """Put a free block on the shelf."""
        key = block.size << SIZE_SHIFT | block.address
        self.free[key] = block
        insort(self.order, key)
        block.aged_at = self.pool.searches

    def remove(self, block: Block) -> None:
        """Take a free block off the shelf."""
        key = block.size << SIZE_SHIFT | block.address
        del self.free[key]
        del self.order[bisect_left(self.order, key)]

    def best_fit(self, size: int) -> Block | None:
        """The free block with the smallest size that is not below `size`, of these the one with the lowest address."""
        return self._at(bisect_left(self.order, size << SIZE_SHIFT))

    def after(self, block: Block) -> Block | None:
        """The free block that follows `block` in the order of (size, address)."""
        return self._at(bisect_right(self.order, block.size << SIZE_SHIFT | block.address))

    def _at(self, position: int) -> Block | None:
        return self.free[self.order[position]] if position < len(self.order) else None

    def ordered(self) -> list[Block]:
        """All free blocks by (size, address)."""
        return [self.free[key] for key in self.order]


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
