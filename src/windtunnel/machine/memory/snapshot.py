"""Snapshots of the caching allocator under the names of `torch._C._cuda_memorySnapshot`, and starting from one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from windtunnel.errors import InternalError
from windtunnel.machine.memory.blocks import (
    ALLOCATED,
    DEFAULT_POOL,
    FREE,
    PENDING,
    UNMAPPED,
    Block,
    PoolId,
    PrivatePool,
    Segment,
    Shelf,
)
from windtunnel.machine.memory.heap import Heap
from windtunnel.machine.memory.settings import Settings
from windtunnel.trace.plain import Json

Frames = Callable[[object], Sequence[Mapping[str, object]]]
_STATES = {ALLOCATED: "active_allocated", PENDING: "active_pending_free", FREE: "inactive"}


def settings_dict(settings: Settings) -> Json:
    """The entry `allocator_settings` of a snapshot; sizes in bytes, -1 for no limit."""
    return {
        "PYTORCH_CUDA_ALLOC_CONF": settings.text,
        "max_split_size": _signed(settings.max_split_size),
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "pinned_num_register_threads": settings.pinned_num_register_threads,
        "release_lock_on_cudamalloc": settings.release_lock_on_cudamalloc,
        "pinned_use_cuda_host_register": settings.pinned_use_cuda_host_register,
        "graph_capture_record_stream_reuse": settings.graph_capture_record_stream_reuse,
        "max_round_threshold": _signed(settings.pinned_max_round_threshold),
        "max_cached_size": _signed(settings.pinned_max_cached_size),
        "roundup_power2_divisions": {
            str(1 << index): value for index, value in enumerate(settings.roundup_power2_divisions)
        },
    }


def _signed(value: int) -> int:
    return value if value < 1 << 63 else value - (1 << 64)


def no_frames(context: object) -> list[Json]:
    """No stack is kept."""
    return []


def describe(heap: Heap, pool_id: PoolId | None = None, frames: Frames = no_frames) -> Json:
    """Segments by address and the settings; of one pool, or of all."""
    segments: list[Json] = []
    for segment in heap.segments.values():
        if pool_id in (None, DEFAULT_POOL) or segment.shelf.pool.pool_id == pool_id:
            segments += _entries(heap.device, segment, frames)
    segments.sort(key=lambda found: int(found["address"]))
    heap.tell("snapshot", 0, sum(found["active_size"] for found in segments), 0, None)
    return {"segments": segments, "allocator_settings": settings_dict(heap.settings)}


def _entries(device: int, segment: Segment, frames: Frames) -> list[Json]:
    """A segment as one entry, an expandable one as an entry for each run of mapped blocks."""
    runs: list[list[Block]] = [[]]
    for block in segment.blocks():
        if block.state == UNMAPPED:
            runs.append([])
        else:
            runs[-1].append(block)
    return [_entry(device, segment, run, frames) for run in runs if run]


def _entry(device: int, segment: Segment, blocks: list[Block], frames: Frames) -> Json:
    active = [block for block in blocks if block.state != FREE]
    return {
        "device": device,
        "address": blocks[0].address,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": sum(block.size for block in active if block.state == ALLOCATED),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": segment.shelf.stream,
        "segment_type": "small" if segment.shelf.pool.small else "large",
        "segment_pool_id": segment.shelf.pool.pool_id,
        "is_expandable": segment.expandable,
        "frames": frames(segment.context) if segment.context is not None else [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": _STATES[block.state],
                "frames": frames(block.context) if block.context is not None else [],
            }
            for block in blocks
        ],
    }


class Restoring:
    """Fills an empty heap with the segments of a snapshot; `create_pool` makes the private pools that it names."""

    def __init__(self, heap: Heap, create_pool: Callable[[PoolId], PrivatePool]) -> None:
        self._heap = heap
        self._create_pool = create_pool
        self._live: dict[int, Block] = {}

    def run(self, segments: Iterable[Json]) -> dict[int, Block]:
        """The allocated blocks by address."""
        heap = self._heap
        if heap.segments:
            raise InternalError("An allocator that holds segments cannot start from a snapshot.")
        expandable: dict[Shelf, list[Json]] = {}
        for entry in sorted(segments, key=lambda found: int(found["address"])):
            shelf = self._shelf_of(entry)
            if entry.get("is_expandable"):
                expandable.setdefault(shelf, []).append(entry)
                continue
            segment = heap.add_segment(int(entry["address"]), int(entry["total_size"]), shelf)
            heap.driver.adopt(segment.address, segment.size)
            self._restore_blocks(segment, None, entry["blocks"])
            heap.change_reserved(shelf, 1, segment.size)
        for shelf, entries in expandable.items():
            self._restore_expandable(shelf, entries)
        return self._live

    def _shelf_of(self, entry: Json) -> Shelf:
        pool_id: PoolId = tuple(entry.get("segment_pool_id", DEFAULT_POOL))
        small = entry["segment_type"] == "small"
        if pool_id == DEFAULT_POOL:
            pool = self._heap.small if small else self._heap.large
        else:
            private = self._heap.pools.get(pool_id) or self._create_pool(pool_id)
            pool = private.small if small else private.large
        return pool.shelf(int(entry["stream"]))

    def _restore_blocks(self, segment: Segment, last: Block | None, entries: Iterable[Json]) -> Block | None:
        """Append blocks behind `last`; the new last one."""
        shelf = segment.shelf
        address = last.address + last.size if last is not None else segment.address
        for entry in entries:
            state = FREE if entry["state"] == "inactive" else ALLOCATED
            block = Block(address, int(entry["size"]), shelf, segment, state)
            block.requested = int(entry["requested_size"])
            self._heap.link(last, block, None)
            address += block.size
            last = block
            if state == ALLOCATED:
                self._live[block.address] = block
                self._heap.statistics.handed_out(shelf.counters, block.size, block.requested)
            else:
                shelf.add(block)
                if not segment.expandable and block.size != segment.size:
                    self._heap.statistics.change_split(shelf.counters, 1, block.size)
        return last

    def _restore_expandable(self, shelf: Shelf, entries: list[Json]) -> None:
        """One expandable segment that begins at the lowest mapped address, with holes between the entries."""
        size, page_bytes = self._heap.expandable_size(shelf.pool.small)
        address = int(entries[0]["address"])
        segment = self._heap.add_segment(address, size, shelf, page_bytes)
        last: Block | None = None
        for entry in entries:
            begin, mapped = int(entry["address"]), int(entry["total_size"])
            if last is not None and last.address + last.size < begin:
                last = self._restore_hole(segment, last, begin)
            self._heap.driver.map(mapped, mapped // page_bytes)
            last = self._restore_blocks(segment, last, entry["blocks"])
            self._heap.change_reserved(shelf, 0, mapped)
        if last is not None and last.address + last.size < address + size:
            self._restore_hole(segment, last, address + size)

    def _restore_hole(self, segment: Segment, last: Block, end: int) -> Block:
        begin = last.address + last.size
        hole = Block(begin, end - begin, segment.shelf, segment, UNMAPPED)
        self._heap.link(last, hole, None)
        self._heap.add_unmapped(hole)
        return hole
