"""Snapshots of the caching allocator under the names of `torch._C._cuda_memorySnapshot`, and starting from one."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from understudy.errors import InternalError
from understudy.machine.alloc_conf import Settings
from understudy.machine.allocator_blocks import (
    ALLOCATED,
    DEFAULT_POOL,
    FREE,
    PENDING,
    UNMAPPED,
    Block,
    PoolId,
    Segment,
    Shelf,
)
from understudy.machine.allocator_core import SMALL_SEGMENT
from understudy.machine.allocator_release import PooledAllocator

Frames = Callable[[object], list[dict[str, Any]]]
_STATES = {ALLOCATED: "active_allocated", PENDING: "active_pending_free", FREE: "inactive"}


def settings_dict(settings: Settings) -> dict[str, Any]:
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


def _no_frames(context: object) -> list[dict[str, Any]]:
    return []


class SnapshotAllocator(PooledAllocator):
    """The part of the allocator that describes itself, and can start from a description."""

    def snapshot(self, pool_id: PoolId | None = None, frames: Frames = _no_frames) -> dict[str, Any]:
        """Segments by address and the settings, as in `torch.cuda.memory._snapshot`; of one pool, or of all.

        `frames` turns the `context` of a block or segment into the frames of a stack: filename, line, name.
        """
        segments: list[dict[str, Any]] = []
        for segment in self.segments.values():
            if pool_id in (None, DEFAULT_POOL) or segment.shelf.pool.pool_id == pool_id:
                segments += self._describe(segment, frames)
        segments.sort(key=lambda found: int(found["address"]))
        if self._on_action is not None:
            self._on_action("snapshot", 0, sum(found["active_size"] for found in segments), 0, None)
        return {"segments": segments, "allocator_settings": settings_dict(self.settings)}

    def _describe(self, segment: Segment, frames: Frames) -> list[dict[str, Any]]:
        """A segment as one entry, an expandable one as an entry for each run of mapped blocks."""
        runs: list[list[Block]] = [[]]
        for block in segment.blocks():
            if block.state == UNMAPPED:
                runs.append([])
            else:
                runs[-1].append(block)
        return [self._entry(segment, run, frames) for run in runs if run]

    def _entry(self, segment: Segment, blocks: list[Block], frames: Frames) -> dict[str, Any]:
        active = [block for block in blocks if block.state != FREE]
        return {
            "device": self.device,
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

    def restore(self, segments: Iterable[Mapping[str, Any]]) -> dict[int, Block]:
        """Start from the segments of a snapshot, at their addresses; the allocated blocks by address.

        The allocator must be empty. Blocks that wait for other streams count as allocated.
        """
        if self.segments:
            raise InternalError("An allocator that holds segments cannot start from a snapshot.")
        live: dict[int, Block] = {}
        expandable: dict[Shelf, list[Mapping[str, Any]]] = {}
        for entry in sorted(segments, key=lambda found: int(found["address"])):
            shelf = self._shelf_of(entry)
            if entry.get("is_expandable"):
                expandable.setdefault(shelf, []).append(entry)
                continue
            segment = Segment(int(entry["address"]), int(entry["total_size"]), shelf, self._number_segment())
            self.segments[segment.address] = segment
            self.driver.adopt(segment.address, segment.size)
            if shelf.pool.private is not None:
                shelf.pool.private.segments += 1
            self._restore_blocks(segment, None, entry["blocks"], live)
            self._change_reserved(shelf, 1, segment.size)
        for shelf, entries in expandable.items():
            self._restore_expandable(shelf, entries, live)
        self._update()
        return live

    def _shelf_of(self, entry: Mapping[str, Any]) -> Shelf:
        pool_id: PoolId = tuple(entry.get("segment_pool_id", DEFAULT_POOL))
        small = entry["segment_type"] == "small"
        if pool_id == DEFAULT_POOL:
            pool = self._small if small else self._large
        else:
            private = self.pools.get(pool_id) or self.create_pool(pool_id)
            pool = private.small if small else private.large
        return pool.shelf(int(entry["stream"]))

    def _restore_blocks(
        self, segment: Segment, last: Block | None, entries: Iterable[Mapping[str, Any]], live: dict[int, Block]
    ) -> Block | None:
        """Append blocks behind `last`; the new last one."""
        shelf = segment.shelf
        address = last.address + last.size if last is not None else segment.address
        for entry in entries:
            state = FREE if entry["state"] == "inactive" else ALLOCATED
            block = Block(address, int(entry["size"]), shelf, segment, state)
            block.requested = int(entry["requested_size"])
            self._link(last, block, None)
            address += block.size
            last = block
            if state == ALLOCATED:
                live[block.address] = block
                for counters in (self._all, shelf.counters):
                    counters.handed_out(block.size, block.requested)
            else:
                shelf.add(block)
                if not segment.expandable and block.size != segment.size:
                    for counters in (self._all, shelf.counters):
                        counters.change_split(1, block.size)
        return last

    def _restore_expandable(self, shelf: Shelf, entries: list[Mapping[str, Any]], live: dict[int, Block]) -> None:
        """One expandable segment that begins at the lowest mapped address, with holes between the entries."""
        page_bytes = SMALL_SEGMENT if shelf.pool.small else self.settings.large_segment_size
        total = self.driver.total_bytes
        address = int(entries[0]["address"])
        size = -(-(total + total // 8) // page_bytes) * page_bytes
        segment = Segment(address, size, shelf, self._number_segment(), page_bytes)
        self.segments[address] = segment
        self._expandable_segments += 1
        if shelf.pool.private is not None:
            shelf.pool.private.segments += 1
        last: Block | None = None
        for entry in entries:
            begin, mapped = int(entry["address"]), int(entry["total_size"])
            if last is not None and last.address + last.size < begin:
                last = self._restore_hole(segment, last, begin)
            self.driver.map(mapped, mapped // page_bytes)
            last = self._restore_blocks(segment, last, entry["blocks"], live)
            self._change_reserved(shelf, 0, mapped)
        if last is not None and last.address + last.size < address + size:
            self._restore_hole(segment, last, address + size)

    def _restore_hole(self, segment: Segment, last: Block, end: int) -> Block:
        begin = last.address + last.size
        hole = Block(begin, end - begin, segment.shelf, segment, UNMAPPED)
        self._link(last, hole, None)
        insort(segment.shelf.unmapped, hole, key=lambda block: block.address)
        return hole
