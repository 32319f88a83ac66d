"""Expandable segments: one range of addresses a stream and pool, to which memory is mapped page by page.

The small pool maps pages of 2 MiB, the large pool pages of 20 MiB; the range is 9/8 of the device's memory, so that
unmapped holes may be followed by new pages. Source: the note "Expandable Segments" in CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from windtunnel.machine.memory.blocks import FREE, UNMAPPED, Block, Shelf
from windtunnel.machine.memory.heap import Heap
from windtunnel.machine.memory.pending import PendingFrees


def _expandable_size(block: Block) -> int:
    """What a free block could grow to: its size and the unmapped addresses right behind it."""
    after = block.next
    return block.size + (after.size if after is not None and after.state == UNMAPPED else 0)


class ExpandableSegments:
    """Grows and shrinks the expandable segments of a heap."""

    def __init__(self, heap: Heap, pending: PendingFrees) -> None:
        self._heap = heap
        self._pending = pending

    def best(self, shelf: Shelf, block: Block, active: bool) -> Block | None:
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

    def grow(self, shelf: Shelf, size: int, context: object) -> Block | None:
        """A free block of at least `size` bytes made by mapping memory, taken off its shelf; None without memory."""
        block = self._room(shelf, size)
        if block is None:
            return None
        if block.state == UNMAPPED and not self._map(block, min(block.size, size), context):
            if block.size == block.segment.size:
                self.release(block)
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
        return self._new_segment(shelf, size)

    def _new_segment(self, shelf: Shelf, needed: int) -> Block | None:
        size, page_bytes = self._heap.expandable_size(shelf.pool.small)
        if size < needed:
            return None
        address = self._heap.driver.reserve_address(size)
        segment = self._heap.add_segment(address, size, shelf, page_bytes)
        block = segment.head = Block(address, size, shelf, segment, UNMAPPED)
        self._heap.add_unmapped(block)
        return block

    def _map(self, block: Block, size: int, context: object) -> bool:
        """Map memory behind the first `size` bytes (rounded up to pages) of an unmapped block; False without memory."""
        shelf, segment = block.shelf, block.segment
        page_bytes = segment.page_bytes
        size = -(-size // page_bytes) * page_bytes
        if not self._heap.driver.map(size, size // page_bytes):
            return False
        shelf.unmapped.remove(block)
        if size < block.size:
            rest = Block(block.address + size, block.size - size, shelf, segment, UNMAPPED)
            self._heap.link(block, rest, block.next)
            self._heap.add_unmapped(rest)
            block.size = size
        mapped_at = block.address
        block.state = FREE
        for neighbour in (block.prev, block.next):
            if neighbour is not None and neighbour.state == FREE:
                shelf.remove(neighbour)
                self._heap.absorb(block, neighbour)
        shelf.add(block)
        self._heap.change_reserved(shelf, 0, size)
        self._heap.statistics.num_device_alloc += 1
        self._heap.tell("segment_map", mapped_at, size, shelf.stream, block)
        if segment.context is None and block.prev is None:
            segment.context = context
        return True

    def unmap(self, block: Block) -> None:
        """Give the whole pages inside a free block back to the driver."""
        shelf, segment = block.shelf, block.segment
        page_bytes = segment.page_bytes
        begin = segment.address + -(-(block.address - segment.address) // page_bytes) * page_bytes
        end = segment.address + (block.address + block.size - segment.address) // page_bytes * page_bytes
        if begin >= end:
            return
        self._pending.synchronize_stream(shelf.stream)  # unmapping does not wait for the device by itself
        self._heap.driver.unmap(end - begin, (end - begin) // page_bytes)
        shelf.remove(block)
        if begin > block.address:
            piece = Block(block.address, begin - block.address, shelf, segment)
            piece.accesses = block.accesses
            self._heap.link(block.prev, piece, block)
            shelf.add(piece)
        if block.address + block.size > end:
            piece = Block(end, block.address + block.size - end, shelf, segment)
            piece.accesses = block.accesses
            self._heap.link(block, piece, block.next)
            shelf.add(piece)
        block.address, block.size, block.state = begin, end - begin, UNMAPPED
        block.accesses = None
        for neighbour in (block.prev, block.next):
            if neighbour is not None and neighbour.state == UNMAPPED:
                shelf.unmapped.remove(neighbour)
                self._heap.absorb(block, neighbour)
        self._heap.add_unmapped(block)
        self._heap.change_reserved(shelf, 0, begin - end)
        self._heap.statistics.num_device_free += 1
        self._heap.tell("segment_unmap", begin, end - begin, shelf.stream, block)

    def release(self, block: Block) -> None:
        """Forget an expandable segment whose only block, `block`, is unmapped."""
        block.shelf.unmapped.remove(block)
        self._heap.remove_segment(block.segment)
