"""What an allocator held when its recording began, worked out from its end and its events.

Most snapshots start after the model was made. The final segments are known, and every event since the start too, so
the start follows: segments without those that came later, with those that went; blocks that are freed or still there
without having been allocated in between. Free blocks are the gaps, because free neighbours always join.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from windtunnel.analysis.snapshot_file import Snapshot, small_pool
from windtunnel.machine.memory.blocks import DEFAULT_POOL, PoolId
from windtunnel.machine.memory.heap import SMALL_SIZE, round_size
from windtunnel.machine.memory.settings import MIB, Settings
from windtunnel.trace.plain import Json

PAGE = 2 * MIB


class Range(NamedTuple):
    """Memory that was held at the start."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    pool_id: PoolId


class LiveBlock(NamedTuple):
    """A block that was allocated at the start; `size` is 0 where only the request is known, `freed_at` its event."""

    address: int
    requested: int
    size: int
    freed_at: int


def start_segments(snapshot: Snapshot) -> list[Json]:
    """The segments at the start of the recording, as a snapshot's segments; empty when nothing was held."""
    blocks = sorted(live_blocks(snapshot))
    first_uses = _first_uses(snapshot)
    found = []
    for held in sorted([*_plain_ranges(snapshot), *_expandable_ranges(snapshot)]):
        inside = [block for block in blocks if held.address <= block.address < held.address + held.size]
        found.append(
            {
                "device": snapshot.device,
                "address": held.address,
                "total_size": held.size,
                "stream": held.stream,
                "segment_type": "small" if held.small else "large",
                "segment_pool_id": held.pool_id,
                "is_expandable": held.expandable,
                "blocks": _blocks(held, inside, snapshot.settings, first_uses),
            }
        )
    return found


def live_blocks(snapshot: Snapshot) -> list[LiveBlock]:
    """Blocks that were allocated before the first event: freed since, or still there at the end."""
    since: set[int] = set()
    pending: set[int] = set()
    found = []
    for index, event in enumerate(snapshot.events):
        if event.action == "alloc":
            since.add(event.address)
        elif event.action == "free_requested":
            if event.address not in since:
                found.append(LiveBlock(event.address, event.size, 0, index))
            since.discard(event.address)
            pending.add(event.address)
        elif event.action == "free_completed":
            if event.address not in pending:
                found.append(LiveBlock(event.address, event.size, 0, index))
            pending.discard(event.address)
    for segment in snapshot.segments:
        for block in segment["blocks"]:
            address = block["address"]
            if block["state"] != "inactive" and address not in since and address not in pending:
                found.append(LiveBlock(address, block["requested_size"], block["size"], len(snapshot.events)))
    return found


def _range(segment: Json) -> Range:
    return Range(
        segment["address"],
        segment["total_size"],
        segment["stream"],
        segment["segment_type"] == "small",
        segment["is_expandable"],
        segment["segment_pool_id"],
    )


def _plain_ranges(snapshot: Snapshot) -> list[Range]:
    """Segments of `cudaMalloc` at the start: those of the end, with every event undone."""
    held = {found.address: found for found in map(_range, snapshot.segments) if not found.expandable}
    for event in reversed(snapshot.events):
        if event.action == "segment_alloc":
            held.pop(event.address, None)
        elif event.action == "segment_free":
            pool_id = event.pool_id or DEFAULT_POOL
            held[event.address] = Range(event.address, event.size, event.stream, small_pool(event.size), False, pool_id)
    return list(held.values())


def _expandable_ranges(snapshot: Snapshot) -> list[Range]:
    """Mapped parts of expandable segments at the start, undone page by page."""
    pages: dict[int, Range] = {}
    for found in map(_range, snapshot.segments):
        if found.expandable:
            for address in range(found.address, found.address + found.size, PAGE):
                pages[address] = found
    for event in reversed(snapshot.events):
        if event.action == "segment_map":
            for address in range(event.address, event.address + event.size, PAGE):
                pages.pop(address, None)
        elif event.action == "segment_unmap":
            small = event.size % snapshot.settings.large_segment_size != 0
            pool_id = event.pool_id or DEFAULT_POOL
            for address in range(event.address, event.address + event.size, PAGE):
                pages[address] = Range(event.address, event.size, event.stream, small, True, pool_id)
    found_ranges: list[Range] = []
    for address in sorted(pages):
        owner = pages[address]
        last = found_ranges[-1] if found_ranges else None
        if last is not None and last.address + last.size == address and last[2:] == owner[2:]:
            found_ranges[-1] = last._replace(size=last.size + PAGE)
        else:
            found_ranges.append(owner._replace(address=address, size=PAGE))
    return found_ranges


def _first_uses(snapshot: Snapshot) -> list[tuple[int, int]]:
    """(address, event) of the first allocation at each address, by address."""
    first: dict[int, int] = {}
    for index, event in enumerate(snapshot.events):
        if event.action == "alloc":
            first.setdefault(event.address, index)
    return sorted(first.items())


def _blocks(held: Range, live: list[LiveBlock], settings: Settings, first_uses: list[tuple[int, int]]) -> list[Json]:
    """Blocks of one range: the live ones, and the gaps between them."""
    found: list[Json] = []
    address, end = held.address, held.address + held.size
    for index, block in enumerate(live):
        if block.address > address:
            found.append(_entry(address, block.address - address, 0, "inactive"))
        limit = live[index + 1].address if index + 1 < len(live) else end
        size = block.size or _size(block, limit - block.address, held, settings, first_uses)
        found.append(_entry(block.address, size, block.requested, "active_allocated"))
        address = block.address + size
    if address < end:
        found.append(_entry(address, end - address, 0, "inactive"))
    return found


def _size(block: LiveBlock, room: int, held: Range, settings: Settings, first_uses: list[tuple[int, int]]) -> int:
    """The size of a block of which only the request is known.

    What could not be split off belongs to it: all room of an oversize block, up to 1 MiB in the large pool. Where a
    free block follows, the first allocation in it shows where it begins, if that came before this block's free.
    """
    size = round_size(block.requested, settings)
    if held.small or held.expandable:
        return size
    if size >= settings.max_split_size or room - size <= SMALL_SIZE:
        return room
    begin = bisect_left(first_uses, (block.address + size, 0))
    end = bisect_left(first_uses, (block.address + room, 0))
    uses = [(index, address) for address, index in first_uses[begin:end] if index < block.freed_at]
    if uses:
        beyond = min(uses)[1] - block.address - size
        if beyond <= SMALL_SIZE:
            return size + beyond
    return size


def _entry(address: int, size: int, requested: int, state: str) -> Json:
    return {"address": address, "size": size, "requested_size": requested, "state": state}
