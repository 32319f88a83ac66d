"""Pinned host memory: powers of two, reuse, events, statistics."""

import pytest

from windtunnel.errors import InternalError
from windtunnel.machine.memory.host_allocator import HostAllocator
from windtunnel.machine.memory.settings import parse

KIB, MIB = 1 << 10, 1 << 20


class Events:
    """Events that a test completes by hand, by (device, stream)."""

    def __init__(self):
        self.complete = set()

    def record(self, stream):
        return stream

    def done(self, token):
        return token in self.complete

    def synchronize(self, token):
        self.complete.add(token)


@pytest.mark.parametrize(("count", "size"), [(10 * 1024, 65536), (20 * 1024, 131072), (1, 4), (16 * 1024, 65536)])
def test_float_tensors_take_a_power_of_two(count, size):
    allocator = HostAllocator()
    assert allocator.malloc(count * 4).size == size
    assert allocator.memory_stats()["allocated_bytes"]["current"] == size


def test_a_freed_block_is_used_again_last_in_first_out():
    allocator = HostAllocator()
    first, second = allocator.malloc(3000), allocator.malloc(4000)
    allocator.free(first)
    allocator.free(second)
    assert allocator.malloc(2049) is second
    assert allocator.malloc(4096) is first
    assert allocator.memory_stats()["num_host_alloc"] == 2


def test_no_block_of_another_size_is_used():
    allocator = HostAllocator()
    allocator.free(allocator.malloc(MIB))
    assert allocator.malloc(10).size == 16
    assert allocator.memory_stats()["allocations"]["current"] == 2


def test_a_block_comes_back_when_the_stream_is_done_with_it():
    events = Events()
    allocator = HostAllocator(events=events)
    block = allocator.malloc(4096)
    allocator.record_event(block, device=0, stream=2)
    allocator.free(block)
    assert allocator.memory_stats()["active_bytes"]["current"] == 4096
    assert allocator.malloc(4096) is not block
    events.complete.add((0, 2))
    assert allocator.malloc(4096) is block


def test_an_incomplete_event_holds_back_the_later_ones():
    events = Events()
    allocator = HostAllocator(events=events)
    first, second = allocator.malloc(4096), allocator.malloc(8192)
    allocator.record_event(first, 0, 1)
    allocator.record_event(second, 0, 2)
    allocator.free(first)
    allocator.free(second)
    events.complete.add((0, 2))
    assert allocator.malloc(8192) is not second
    events.complete.add((0, 1))
    assert allocator.malloc(8192) is second


def test_empty_cache_gives_back_what_is_free():
    allocator = HostAllocator(alloc_ns=5000, free_ns=3000)
    kept, freed = allocator.malloc(4096), allocator.malloc(8192)
    allocator.free(freed)
    allocator.empty_cache()
    stats = allocator.memory_stats()
    assert stats["allocations"] == {"current": 1, "peak": 2, "allocated": 2, "freed": 1}
    assert stats["allocated_bytes"]["current"] == kept.size
    assert stats["num_host_free"] == 1
    assert stats["host_alloc_time"] == {"total": 10, "max": 5, "min": 5, "count": 2, "avg": 5}
    assert stats["host_free_time"]["total"] == 3


def test_blocks_of_dead_storages_are_freed_before_the_next_answer():
    allocator = HostAllocator()
    block = allocator.malloc(4096)
    allocator.frees.append(block)
    assert allocator.memory_stats()["active_requests"]["current"] == 0
    assert allocator.malloc(4096) is block


def test_settings_limit_rounding_and_caching():
    allocator = HostAllocator(parse("pinned_max_round_threshold_mb:1,pinned_max_cached_size_mb:2"))
    assert allocator.malloc(MIB - 1).size == MIB
    block = allocator.malloc(3 * MIB + 5)
    assert block.size == 3 * MIB + 5
    allocator.free(block)
    stats = allocator.memory_stats()
    assert (stats["num_host_free"], stats["allocated_bytes"]["current"]) == (1, MIB)


def test_peaks_and_sums_can_be_reset():
    allocator = HostAllocator()
    allocator.free(allocator.malloc(4096))
    allocator.reset_peak()
    allocator.reset_accumulated()
    stats = allocator.memory_stats()
    assert stats["active_bytes"] == {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    assert stats["allocated_bytes"] == {"current": 4096, "peak": 4096, "allocated": 0, "freed": 0}


def test_zero_bytes_take_no_block_and_a_second_free_is_refused():
    allocator = HostAllocator()
    assert allocator.malloc(0) is None
    block = allocator.malloc(1)
    allocator.free(block)
    with pytest.raises(InternalError, match="freed twice"):
        allocator.free(block)


def test_addresses_are_page_aligned_and_apart():
    allocator = HostAllocator()
    blocks = [allocator.malloc(size) for size in (1, 5000, 1, MIB)]
    assert all(block.address % 4096 == 0 for block in blocks)
    ends = [block.address + block.size for block in blocks]
    assert all(end <= block.address for end, block in zip(ends, blocks[1:], strict=False))
