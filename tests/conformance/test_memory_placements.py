"""Placements that PyTorch made on a real GPU, against the allocator's own.

The table holds what one recorded snapshot shows: in which of its segments, in order of their making, and at which
offset each request was placed. Addresses are not part of it.
"""

import json
from pathlib import Path

from understudy.machine.allocator import CachingAllocator
from understudy.machine.segments import DeviceMemory

TABLE = json.loads((Path(__file__).parent / "memory" / "placements_from_empty.json").read_text())


def test_every_placement_is_the_real_ones():
    allocator = CachingAllocator(0, DeviceMemory(1 << 46))
    live, segments, allocations = {}, [], 0
    for action, size, segment, offset in TABLE["rows"]:
        if action == "segment_alloc":
            segments.append(size)
        elif action == "alloc":
            block = allocator.malloc(size)
            live[segment, offset] = block
            allocations += 1
            found = (block.segment.number - 1, block.address - block.segment.address)
            assert found == (segment, offset), f"allocation {allocations} of {size} bytes"
            assert [held.size for held in allocator.segments.values()] == segments
        else:
            allocator.free(live.pop((segment, offset)))
    assert allocations == 36
    assert len(segments) == 9
