"""What every part of the caching allocator shares: settings, sizes, statistics, cutting and joining blocks."""

from __future__ import annotations

from collections.abc import Callable

from understudy.errors import UsageError
from understudy.machine.alloc_conf import UNLIMITED, Settings
from understudy.machine.allocator_blocks import (
    ALLOCATED,
    FREE,
    PENDING,
    Block,
    Pool,
    PoolId,
    PrivatePool,
    Segment,
    Shelf,
)
from understudy.machine.allocator_stats import Statistics
from understudy.machine.segments import MIB, DeviceMemory

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


class AllocatorCore:
    """State and rules without the driver's and the streams' part; `CachingAllocator` is the whole."""

    def __init__(
        self,
        device: int,
        driver: DeviceMemory,
        settings: Settings | None = None,
        on_action: Action | None = None,
        join_accesses: Callable[[object, object], object] | None = None,
    ) -> None:
        self.device = device
        self.driver = driver
        self.settings = settings or Settings()
        self.statistics = Statistics(self.settings.max_split_size)
        self.segments: dict[int, Segment] = {}
        self.pools: dict[PoolId, PrivatePool] = {}
        self._all = self.statistics.all
        self._small = Pool(True, self.statistics.small)
        self._large = Pool(False, self.statistics.large)
        self._small_shelves = self._small.shelves
        self._large_shelves = self._large.shelves
        self._segment_number = 0
        self._total_allocated = 0
        self._allowed: int | None = None
        self._join_accesses = join_accesses
        self._on_action = on_action
        self._scopes: list[tuple[PoolId, Callable[[int], bool] | None]] = []
        self._waiting = 0
        self._expandable_segments = 0
        self._plain = True
        self._ageing = False
        self.set_settings(self.settings)
        self.set_memory_fraction(self.settings.per_process_memory_fraction)

    # Settings

    def set_settings(self, settings: Settings) -> None:
        """Change the settings of a running allocator (`torch.cuda.memory._set_allocator_settings`).

        The memory fraction counts only at the start, as in PyTorch; `set_memory_fraction` changes it later.
        """
        if settings.garbage_collection_threshold > 0.0 and not self._ageing:
            for block in self._large.ordered():
                block.aged_at = self._large.searches
        self.settings = settings
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
        return self._on_action

    @on_action.setter
    def on_action(self, hook: Action | None) -> None:
        self._on_action = hook
        self._update()

    def _update(self) -> None:
        """Recompute whether the fast paths of `malloc` and `free` tell the whole story."""
        self._ageing = self._allowed is not None and self.settings.garbage_collection_threshold > 0.0
        self._plain = not (
            self._on_action is not None
            or self._rounding
            or self._limited
            or self._ageing
            or self.settings.expandable_segments
            or self._expandable_segments
            or self._scopes
            or self._waiting
        )

    # Sizes

    def round_size(self, requested: int) -> int:
        """The size of the block for a request, bytes."""
        if not self._rounding:
            return (requested + 511) & -512
        return round_size(requested, self.settings)

    def segment_size(self, size: int) -> int:
        """Bytes that are asked of the driver for a block of `size` bytes when no free block fits."""
        if size <= SMALL_SIZE:
            return SMALL_SEGMENT
        if size < MIN_LARGE_ALLOC:
            return self.settings.large_segment_size
        return -(-size // ROUND_LARGE) * ROUND_LARGE

    # Segments and blocks

    def _number_segment(self) -> int:
        self._segment_number += 1
        return self._segment_number

    def _change_reserved(self, shelf: Shelf, segments: int, size: int) -> None:
        self._total_allocated += size
        self._all.change_reserved(segments, size)
        shelf.counters.change_reserved(segments, size)
        if shelf.pool.private is not None:
            shelf.pool.private.change_reserved(shelf.pool.small, size)

    def _hand_out(self, block: Block, size: int, requested: int, context: object, split: bool) -> Block:
        """Turn a block that was taken off its shelf into an allocation, cutting off what is left."""
        shelf = block.shelf
        was_split = block.prev is not None or block.next is not None
        every, one = self._all, shelf.counters
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
                every.change_split(blocks, change)
                one.change_split(blocks, change)
        elif was_split and not block.segment.expandable:
            every.change_split(-1, -block.size)
            one.change_split(-1, -block.size)
        block.state = ALLOCATED
        block.requested = requested
        block.context = context
        if self._on_action is not None:
            self._on_action("alloc", block.address, requested, shelf.stream, block)
        every.handed_out(block.size, requested)
        one.handed_out(block.size, requested)
        if block.size >= self.settings.max_split_size:
            self.statistics.oversize_allocations.increase()
        return block

    def _complete_free(self, block: Block) -> None:
        """Put a block that nobody uses any more on its shelf, joined with its free neighbours."""
        every = self._all
        shelf = block.shelf
        one = shelf.counters
        if self._on_action is not None:
            self._on_action("free_completed", block.address, block.requested, block.stream, block)
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
            shelf.remove(before)
            self._absorb(block, before)
            before = block.prev
        after = block.next
        if after is not None and after.state == FREE:
            blocks -= 1
            size -= after.size
            shelf.remove(after)
            self._absorb(block, after)
            after = block.next
        block.state = FREE
        shelf.add(block)
        if before is not None or after is not None:
            blocks += 1
            size += block.size
        if (blocks or size) and not block.segment.expandable:
            every.change_split(blocks, size)
            one.change_split(blocks, size)

    def _absorb(self, block: Block, neighbour: Block) -> None:
        """Make `neighbour` (before or after, already off its shelf) part of `block`."""
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
