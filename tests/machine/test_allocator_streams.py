"""Blocks used by several streams, pools of their own, and captures."""

import pytest

from windtunnel.errors import UsageError
from windtunnel.machine.memory.allocator import CachingAllocator
from windtunnel.machine.memory.driver import DeviceMemory
from windtunnel.machine.memory.oom_text import OutOfMemory

MIB, GIB = 1 << 20, 1 << 30


class Events:
    """Events that a test completes by hand, by stream."""

    def __init__(self):
        self.complete = set()
        self.recorded = []
        self.waited = []

    def record(self, stream):
        self.recorded.append(stream)
        return stream

    def done(self, token):
        return token in self.complete

    def synchronize(self, token):
        self.waited.append(token)


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def allocator(events):
    return CachingAllocator(0, DeviceMemory(GIB), events=events)


def test_a_block_used_by_another_stream_waits_for_it(allocator, events):
    block = allocator.malloc(30 * MIB)
    allocator.record_stream(block, 1)
    allocator.free(block)
    stats = allocator.memory_stats()
    assert stats["allocated_bytes"]["all"]["current"] == 0
    assert stats["active_bytes"]["all"]["current"] == 30 * MIB
    assert stats["requested_bytes"]["all"]["current"] == 30 * MIB
    assert allocator.snapshot()["segments"][0]["blocks"][0]["state"] == "active_pending_free"
    assert allocator.malloc(30 * MIB).address != block.address
    events.complete.add(1)
    assert allocator.malloc(30 * MIB).address == block.address


def test_the_events_of_a_death_are_recorded_at_the_death(allocator, events):
    block = allocator.malloc(30 * MIB)
    allocator.record_stream(block, 1)
    allocator.frees.record(block.uses)
    allocator.frees.append(block)
    assert events.recorded == [1]
    allocator.free(allocator.frees.popleft())
    assert events.recorded == [1]
    assert allocator.malloc(30 * MIB) is not block
    events.complete.add(1)
    assert allocator.malloc(30 * MIB) is block


def test_recording_the_own_stream_changes_nothing(allocator, events):
    block = allocator.malloc(30 * MIB, stream=2)
    allocator.record_stream(block, 2)
    allocator.free(block)
    assert events.recorded == []
    assert allocator.malloc(30 * MIB, stream=2) is block


def test_all_recorded_streams_must_be_done(allocator, events):
    block = allocator.malloc(MIB)
    for stream in (1, 2, 1):
        allocator.record_stream(block, stream)
    allocator.free(block)
    assert events.recorded == [1, 2]
    events.complete.add(2)
    allocator.process_events()
    assert allocator.pending_blocks() == [block]
    events.complete.add(1)
    allocator.process_events()
    assert allocator.pending_blocks() == []


def test_active_peak_counts_blocks_that_wait(allocator, events):
    block = allocator.malloc(30 * MIB)
    allocator.record_stream(block, 1)
    allocator.free(block)
    allocator.malloc(40 * MIB)
    stats = allocator.memory_stats()
    assert stats["active_bytes"]["all"]["peak"] == 70 * MIB
    assert stats["allocated_bytes"]["all"]["peak"] == 40 * MIB


def test_empty_cache_waits_for_the_events(allocator, events):
    block = allocator.malloc(30 * MIB)
    allocator.record_stream(block, 1)
    allocator.free(block)
    allocator.empty_cache()
    assert events.waited == [1]
    assert allocator.memory_reserved() == 0
    assert allocator.memory_stats()["num_sync_all_streams"] == 1


def test_a_capture_defers_frees_that_would_need_an_event(allocator, events):
    """Note "Interaction with CUDA graph capture": uses recorded during the capture need no event after it."""
    before, during = allocator.malloc(30 * MIB), allocator.malloc(40 * MIB)
    allocator.record_stream(before, 1)
    allocator.mark_capture_begin()
    allocator.record_stream(during, 1)
    allocator.free(before)
    allocator.free(during)
    allocator.process_events()
    assert events.recorded == []
    allocator.mark_capture_end()
    allocator.process_events()
    assert events.recorded == [1]
    assert allocator.pending_blocks() == [before]


def test_a_death_during_a_capture_has_its_event_afterwards(allocator, events):
    block = allocator.malloc(30 * MIB)
    allocator.record_stream(block, 1)
    allocator.mark_capture_begin()
    allocator.frees.record(block.uses)
    allocator.free(block)
    allocator.mark_capture_end()
    events.recorded.clear()
    allocator.process_events()
    assert events.recorded == [1]


def test_a_capture_never_gives_memory_back():
    allocator = CachingAllocator(0, DeviceMemory(100 * MIB))
    allocator.free(allocator.malloc(60 * MIB))
    allocator.mark_capture_begin()
    with pytest.raises(OutOfMemory):
        allocator.malloc(80 * MIB)
    allocator.mark_capture_end()
    assert allocator.malloc(80 * MIB).size == 80 * MIB


def test_a_pool_keeps_its_blocks_to_itself(allocator):
    allocator.free(allocator.malloc(30 * MIB))
    allocator.begin_allocate_to_pool((0, 1))
    inside = allocator.malloc(30 * MIB)
    allocator.end_allocate_to_pool((0, 1))
    assert inside.pool_id == (0, 1)
    assert allocator.memory_reserved() == 60 * MIB
    allocator.free(inside)
    assert allocator.malloc(30 * MIB).pool_id == (0, 0)
    assert allocator.malloc(30 * MIB).pool_id == (0, 0)
    assert allocator.memory_reserved() == 90 * MIB


def test_a_pool_is_given_back_once_released(allocator):
    allocator.begin_allocate_to_pool((0, 1))
    block = allocator.malloc(30 * MIB)
    allocator.end_allocate_to_pool((0, 1))
    allocator.free(block)
    allocator.empty_cache()
    assert allocator.memory_reserved() == 30 * MIB
    allocator.release_pool((0, 1))
    allocator.empty_cache()
    assert allocator.memory_reserved() == 0
    assert allocator.pools == {}
    pools = allocator.memory_stats()["reserved_bytes_by_private_pools"]
    assert pools[0, 1]["all"] == {"current": 0, "peak": 30 * MIB, "allocated": 30 * MIB, "freed": 30 * MIB}


def test_a_pool_has_as_many_users_as_began_it(allocator):
    for _ in range(2):
        allocator.begin_allocate_to_pool((1, 0))
        allocator.end_allocate_to_pool((1, 0))
    assert allocator.pool_use_count((1, 0)) == 2
    allocator.release_pool((1, 0))
    allocator.release_pool((1, 0))
    allocator.empty_cache()
    assert allocator.pools == {}


def test_only_the_scopes_streams_go_to_the_pool(allocator):
    allocator.begin_allocate_to_pool((0, 1), lambda stream: stream == 3)
    assert allocator.malloc(1, stream=3).pool_id == (0, 1)
    assert allocator.malloc(1, stream=4).pool_id == (0, 0)


def test_the_newest_scope_wins(allocator):
    allocator.begin_allocate_to_pool((0, 1))
    allocator.begin_allocate_to_pool((0, 2))
    assert allocator.malloc(1).pool_id == (0, 2)
    allocator.end_allocate_to_pool((0, 2))
    assert allocator.malloc(1).pool_id == (0, 1)


def test_a_pool_is_begun_once_and_ended_only_while_begun(allocator):
    allocator.begin_allocate_to_pool((0, 1))
    with pytest.raises(UsageError, match="already recording to mempool_id"):
        allocator.begin_allocate_to_pool((0, 1))
    with pytest.raises(UsageError, match="not currently recording to mempool_id"):
        allocator.end_allocate_to_pool((0, 2))


def test_a_fallback_pool_serves_when_memory_runs_out():
    allocator = CachingAllocator(0, DeviceMemory(100 * MIB))
    allocator.create_pool((0, 1))
    allocator.set_pool_options((0, 1), use_on_oom=True)
    allocator.begin_allocate_to_pool((0, 1))
    inside = allocator.malloc(60 * MIB)
    allocator.end_allocate_to_pool((0, 1))
    allocator.free(inside)
    assert allocator.malloc(50 * MIB).pool_id == (0, 1)


def test_a_pool_that_does_not_split_hands_out_whole_segments(allocator):
    allocator.create_pool((0, 1))
    allocator.set_pool_options((0, 1), no_split=True)
    allocator.begin_allocate_to_pool((0, 1))
    assert allocator.malloc(100).size == 2 * MIB


def test_free_memory_of_pools_is_named_in_the_error():
    allocator = CachingAllocator(0, DeviceMemory(100 * MIB))
    allocator.begin_allocate_to_pool((0, 1))
    inside = allocator.malloc(60 * MIB)
    allocator.end_allocate_to_pool((0, 1))
    allocator.free(inside)
    with pytest.raises(OutOfMemory, match=r"with 60.00 MiB allocated in private pools \(e.g., CUDA Graphs\)"):
        allocator.malloc(60 * MIB)
