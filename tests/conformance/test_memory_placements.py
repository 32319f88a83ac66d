"""Placements that PyTorch made on a real GPU, against the allocator's own.

The table holds what one recorded snapshot shows: in which of its segments, in order of their making, and at which
offset each request was placed. Addresses are not part of it. The histories are those of whole training steps.
"""

import json
from pathlib import Path

import pytest

from windtunnel.analysis.replay import replay
from windtunnel.machine.memory.allocator import CachingAllocator
from windtunnel.machine.memory.driver import DeviceMemory

FOLDER = Path(__file__).parent / "memory"
TABLE = json.loads((FOLDER / "placements_from_empty.json").read_text())


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


@pytest.mark.parametrize(
    ("name", "allocations", "driver_calls"),
    [("transformer_fp32_step", 6526, 0), ("transformer_autocast_step", 7591, 1), ("federated_training", 7946, 61)],
)
def test_a_recorded_history_is_replayed_to_the_block(name: str, allocations: int, driver_calls: int) -> None:
    (result,) = replay(FOLDER / f"{name}.json.gz", "recorded")
    assert result.agrees
    assert result.placements_agree == result.allocations == allocations
    assert result.driver_calls_agree == result.driver_calls == driver_calls
    assert result.final_blocks_agree == result.final_blocks > 400


def test_with_modelled_addresses_only_the_drivers_order_differs() -> None:
    (result,) = replay(FOLDER / "federated_training.json.gz")
    assert not result.agrees
    assert result.explained
    assert result.driver_calls_agree == result.driver_calls
