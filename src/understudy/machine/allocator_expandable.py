"""Expandable segments: one range of addresses a stream and pool, to which memory is mapped page by page.

The small pool maps pages of 2 MiB, the large pool pages of 20 MiB; the range is 9/8 of the device's memory, so that
unmapped holes may be followed by new pages. Source: the note "Expandable Segments" in CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import insort

from understudy.machine.allocator_blocks import FREE, UNMAPPED, Block, Segment, Shelf
from understudy.machine.allocator_core import SMALL_SEGMENT
from understudy.machine.allocator_events import PendingFrees


def _address(block: Block) -> int:
    return block.address


def _expandable_size(block: Block) -> int:
    """What a free block could grow to: its size and the unmapped addresses right behind it."""
    after = block.next
    return block.size + (after.size if after is not None and after.state == UNMAPPED else 0)


class ExpandableAllocator(PendingFrees):
    """The part of the allocator that grows and shrinks expandable segments."""

    def _best_expandable(self, shelf: Shelf, block: Block, active: bool) -> Block | None:
        """From the best fit, the block to use when expandable segments are there: see `get_free_block` in c10."""
        if not active:
            found: Block | None = block
            while found is not None and found.segment.expandable:
                found = shelf.after(found)
            return found
        while block.segment.expandable and _expandable_size(block) > block.size:
            after = shelf.after(block)
            if after is None or _expandable_size(after) >= _expandable_size(block):
                break
            block = after
        return block

    def _grow(self, shelf: Shelf, size: int, context: object) -> Block | None:
        """A free block of at least `size` bytes made by mapping memory, taken off its shelf; None without memory."""
        block = self._room(shelf, size)
        if block is None:
            return None
        if block.state == UNMAPPED and not self._map(block, min(block.size, size), context):
            if block.size == block.segment.size:
                self._release_expandable(block)
            return None
        while block.size < size:
            after = block.next
            assert after is not None
            if not self._map(after, min(size - block.size, after.size), context):
                return None
            block = after
        shelf.remove(block)
        return block

    def _room(self, shelf: Shelf, size: int) -> Block | None:
        """The lowest free or unmapped block that begins a run of free and unmapped blocks of `size` bytes.

        None where `size` is more than a new segment's addresses: an allocation never spans two segments.
        """
        for unmapped in shelf.unmapped:
            before = unmapped.prev
            first = before if before is not None and before.state == FREE else unmapped
            room = 0
            block: Block | None = first
            while room < size and block is not None and block.state in (FREE, UNMAPPED):
                room += block.size
                block = block.next
            if room >= size:
                return first
        return self._new_expandable(shelf, size)

    def _new_expandable(self, shelf: Shelf, needed: int) -> Block | None:
        page_bytes = SMALL_SEGMENT if shelf.pool.small else self.settings.large_segment_size
        total = self.driver.total_bytes
        size = -(-(total + total // 8) // page_bytes) * page_bytes
        if size < needed:
            return None
        address = self.driver.reserve_address(size)
        segment = Segment(address, size, shelf, self._number_segment(), page_bytes)
        block = segment.head = Block(address, size, shelf, segment, UNMAPPED)
        self.segments[address] = segment
        self._expandable_segments += 1
        self._plain = False
        if shelf.pool.private is not None:
            shelf.pool.private.segments += 1
        insort(shelf.unmapped, block, key=_address)
        return block

    def _map(self, block: Block, size: int, context: object) -> bool:
        """Map memory behind the first `size` bytes (rounded up to pages) of an unmapped block; False without memory."""
        shelf, segment = block.shelf, block.segment
        page_bytes = segment.page_bytes
        size = -(-size // page_bytes) * page_bytes
        if not self.driver.map(size, size // page_bytes):
            return False
        shelf.unmapped.remove(block)
        if size < block.size:
            rest = Block(block.address + size, block.size - size, shelf, segment, UNMAPPED)
            self._link(block, rest, block.next)
            insort(shelf.unmapped, rest, key=_address)
            block.size = size
        mapped_at = block.address
        block.state = FREE
        for neighbour in (block.prev, block.next):
            if neighbour is not None and neighbour.state == FREE:
                shelf.remove(neighbour)
                self._absorb(block, neighbour)
        shelf.add(block)
        self._change_reserved(shelf, 0, size)
        self.statistics.num_device_alloc += 1
        if self._on_action is not None:
            self._on_action("segment_map", mapped_at, size, shelf.stream, block)
        if segment.context is None and block.prev is None:
            segment.context = context
        return True

    def _unmap(self, block: Block) -> None:
        """Give the whole pages inside a free block back to the driver."""
        shelf, segment = block.shelf, block.segment
        page_bytes = segment.page_bytes
        begin = segment.address + -(-(block.address - segment.address) // page_bytes) * page_bytes
        end = segment.address + (block.address + block.size - segment.address) // page_bytes * page_bytes
        if begin >= end:
            return
        self._synchronize_before_unmap(shelf.stream)
        self.driver.unmap(end - begin, (end - begin) // page_bytes)
        shelf.remove(block)
        if begin > block.address:
            piece = Block(block.address, begin - block.address, shelf, segment)
            piece.accesses = block.accesses
            self._link(block.prev, piece, block)
            shelf.add(piece)
        if block.address + block.size > end:
            piece = Block(end, block.address + block.size - end, shelf, segment)
            piece.accesses = block.accesses
            self._link(block, piece, block.next)
            shelf.add(piece)
        block.address, block.size, block.state = begin, end - begin, UNMAPPED
        block.accesses = None
        for neighbour in (block.prev, block.next):
            if neighbour is not None and neighbour.state == UNMAPPED:
                shelf.unmapped.remove(neighbour)
                self._absorb(block, neighbour)
        insort(shelf.unmapped, block, key=_address)
        self._change_reserved(shelf, 0, begin - end)
        self.statistics.num_device_free += 1
        if self._on_action is not None:
            self._on_action("segment_unmap", begin, end - begin, shelf.stream, block)

    def _synchronize_before_unmap(self, stream: int) -> None:
        """Unmapping does not wait for the device by itself, so PyTorch waits for the segment's stream."""
        self._events.synchronize(self._events.record(stream))

    def _release_expandable(self, block: Block) -> None:
        """Forget an expandable segment whose only block, `block`, is unmapped."""
        block.shelf.unmapped.remove(block)
        del self.segments[block.segment.address]
        if block.shelf.pool.private is not None:
            block.shelf.pool.private.segments -= 1
        self._expandable_segments -= 1
        self._update()

    @staticmethod
    def _link(before: Block | None, block: Block, after: Block | None) -> None:
        """Put `block` between two neighbours."""
        block.prev, block.next = before, after
        if before is not None:
            before.next = block
        else:
            block.segment.head = block
        if after is not None:
            after.prev = block
