"""Segments cut into blocks: what is split off, what is joined, and what that does to the statistics."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from windtunnel.machine.memory.blocks import (
    ALLOCATED,
    FREE,
    PENDING,
    UNMAPPED,
    Block,
    Pool,
    PoolId,
    PrivatePool,
    Segment,
    Shelf,
    by_address,
)
from windtunnel.machine.memory.driver import MIB, DeviceMemory
from windtunnel.machine.memory.settings import Settings
from windtunnel.machine.memory.statistics import Statistics

MIN_BLOCK = 512
SMALL_SIZE = MIB
SMALL_SEGMENT = 2 * MIB
MIN_LARGE_ALLOC = 10 * MIB
ROUND_LARGE = 2 * MIB

Action = Callable[[str, int, int, int, Block | None], None]
"""History hook: (action, address, size, stream, block); the actions are those of PyTorch's memory snapshots."""


def next_division(size: int, divisions: int) -> int:
    """Round `size` bytes up to the next of `divisions` equal steps between two powers of two."""
    if size & (size - 1) == 0:
        return size
    floor = 1 << (size.bit_length() - 1)
    step = floor >> (divisions.bit_length() - 1)
    if step == 0:
        return floor << 1
    return -(-size // step) * step


def round_size(requested: int, settings: Settings) -> int:
    """The size of the block for a request, bytes (pytorch#74213: 1200 with 4 divisions becomes 1280)."""
    if requested >= MIN_BLOCK:
        divisions = settings.divisions(requested)
        if divisions > 1 and requested > MIN_BLOCK * divisions:
            return next_division(requested, divisions)
    return max(MIN_BLOCK, -(-requested // MIN_BLOCK) * MIN_BLOCK)


def segment_size(size: int, settings: Settings) -> int:
    """Bytes that are asked of the driver for a block of `size` bytes when no free block fits."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if size < MIN_LARGE_ALLOC:
        return settings.large_segment_size
    return -(-size // ROUND_LARGE) * ROUND_LARGE


class Heap:
    """All segments of one device and the pools that their free blocks lie in.

    `settings` and `on_action` belong to the allocator, which sets them; `join_accesses` joins what the machine keeps on
    two blocks that become one.
    """

    def __init__(
        self,
        device: int,
        driver: DeviceMemory,
        settings: Settings,
        on_action: Action | None,
        join_accesses: Callable[[object, object], object] | None,
    ) -> None:
        self.device = device
        self.driver = driver
        self.settings = settings
        self.on_action = on_action
        self.statistics = Statistics(settings.max_split_size)
        self.every = self.statistics.all
        self.small = Pool(True, self.statistics.small)
        self.large = Pool(False, self.statistics.large)
        self.pools: dict[PoolId, PrivatePool] = {}
        self.segments: dict[int, Segment] = {}
        self.expandable_segments = 0
        self._join_accesses = join_accesses
        self._number = 0

    def tell(self, action: str, address: int, size: int, stream: int, block: Block | None) -> None:
        """The history hears of an action, if there is one."""
        if self.on_action is not None:
            self.on_action(action, address, size, stream, block)

    # Segments

    def add_segment(self, address: int, size: int, shelf: Shelf, page_bytes: int = 0) -> Segment:
        """A new segment without blocks; with `page_bytes`, an expandable one."""
        self._number += 1
        segment = self.segments[address] = Segment(address, size, shelf, self._number, page_bytes)
        if segment.expandable:
            self.expandable_segments += 1
        if shelf.pool.private is not None:
            shelf.pool.private.segments += 1
        return segment

    def remove_segment(self, segment: Segment) -> None:
        """Forget a segment."""
        del self.segments[segment.address]
        if segment.expandable:
            self.expandable_segments -= 1
        if segment.shelf.pool.private is not None:
            segment.shelf.pool.private.segments -= 1

    def change_reserved(self, shelf: Shelf, segments: int, size: int) -> None:
        """Segments and bytes were got from the driver for a shelf (positive) or given back."""
        self.statistics.change_reserved(shelf.counters, segments, size)
        if shelf.pool.private is not None:
            shelf.pool.private.change_reserved(shelf.pool.small, size)

    def expandable_size(self, small: bool) -> tuple[int, int]:
        """(addresses, page) of an expandable segment, bytes: 9/8 of the device's memory, in whole pages."""
        page_bytes = SMALL_SEGMENT if small else self.settings.large_segment_size
        total = self.driver.total_bytes
        return -(-(total + total // 8) // page_bytes) * page_bytes, page_bytes

    # Blocks

    def hand_out(self, block: Block, size: int, requested: int, context: object, split: bool) -> Block:
        """Turn a block that was taken off its shelf into an allocation, cutting off what is left."""
        shelf = block.shelf
        was_split = block.prev is not None or block.next is not None
        if split:
            rest = block
            block = Block(rest.address, size, shelf, rest.segment)
            block.accesses = rest.accesses
            block.prev = rest.prev
            if block.prev is not None:
                block.prev.next = block
            else:
                block.segment.head = block
                block.segment.context = None  # PyTorch's stays on the rest, and a snapshot looks at the first block
            block.next = rest
            rest.prev = block
            rest.address += size
            rest.size -= size
            shelf.add(rest)
            if not block.segment.expandable:
                blocks, change = (0, -size) if was_split else (1, rest.size)
                self.statistics.change_split(shelf.counters, blocks, change)
        elif was_split and not block.segment.expandable:
            self.statistics.change_split(shelf.counters, -1, -block.size)
        block.state = ALLOCATED
        block.requested = requested
        block.context = context
        if self.on_action is not None:
            self.on_action("alloc", block.address, requested, shelf.stream, block)
        self.statistics.handed_out(shelf.counters, block.size, requested)
        if block.size >= self.settings.max_split_size:
            self.statistics.oversize_allocations.increase()
        return block

    def complete_free(self, block: Block) -> None:
        """Put a block that nobody uses any more on its shelf, joined with its free neighbours."""
        every = self.every
        shelf = block.shelf
        one = shelf.counters
        if self.on_action is not None:
            self.on_action("free_completed", block.address, block.requested, block.stream, block)
        if block.state == PENDING:
            for counters in (every, one):
                counters.pending -= 1
                counters.pending_bytes -= block.size
        every.requested -= block.requested
        one.requested -= block.requested
        block.context = None
        blocks = size = 0
        before = block.prev
        if before is not None and before.state == FREE:
            blocks = -1
            size = -before.size
            self.absorb(block, before)
            shelf.remove(before)
            before = block.prev
        after = block.next
        if after is not None and after.state == FREE:
            blocks -= 1
            size -= after.size
            self.absorb(block, after)
            shelf.remove(after)
            after = block.next
        block.state = FREE
        shelf.add(block)
        if before is not None or after is not None:
            blocks += 1
            size += block.size
        if (blocks or size) and not block.segment.expandable:
            self.statistics.change_split(one, blocks, size)

    def absorb(self, block: Block, neighbour: Block) -> None:
        """Make `neighbour` (before or after, which its caller takes off its shelf) part of `block`."""
        if block.prev is neighbour:
            block.address = neighbour.address
            block.prev = neighbour.prev
            if block.prev is not None:
                block.prev.next = block
            else:
                block.segment.head = block
        else:
            block.next = neighbour.next
            if block.next is not None:
                block.next.prev = block
        block.size += neighbour.size
        if neighbour.accesses is not None:
            if block.accesses is None:
                block.accesses = neighbour.accesses
            elif block.accesses is not neighbour.accesses and self._join_accesses is not None:
                block.accesses = self._join_accesses(block.accesses, neighbour.accesses)

    @staticmethod
    def link(before: Block | None, block: Block, after: Block | None) -> None:
        """Put `block` between two neighbours."""
        block.prev, block.next = before, after
        if before is not None:
            before.next = block
        else:
            block.segment.head = block
        if after is not None:
            after.prev = block

    @staticmethod
    def add_unmapped(block: Block) -> None:
        """Put an unmapped block among its shelf's, in the order of addresses."""
        block.state = UNMAPPED
        insort(block.shelf.unmapped, block, key=by_address)
