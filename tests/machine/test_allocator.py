"""The caching allocator in straight lines: sizes, pools, splits, joins, statistics."""

import pytest

from windtunnel.errors import InternalError
from windtunnel.machine.memory.allocator import CachingAllocator
from windtunnel.machine.memory.driver import DeviceMemory
from windtunnel.machine.memory.oom_text import OutOfMemory

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.fixture
def allocator():
    return CachingAllocator(0, DeviceMemory(16 * GIB))


def offsets(allocator, *blocks):
    return [block.address - block.segment.address for block in blocks]


def test_ones_1024_by_1024_takes_4194304_bytes(allocator):
    allocator.malloc(1024 * 1024 * 4)
    assert allocator.memory_allocated() == 4194304
    assert allocator.memory_reserved() == 20 * MIB


def test_linear_100_100_takes_40960_bytes(allocator):
    """pytorch#76811: weight 40000 and bias 400 bytes, each rounded up to 512."""
    allocator.malloc(100 * 100 * 4)
    allocator.malloc(100 * 4)
    assert allocator.memory_allocated() == 40448 + 512 == 40960


def test_a_tiny_tensor_reserves_2_mib(allocator):
    """pytorch#28394."""
    allocator.malloc(4)
    assert (allocator.memory_allocated(), allocator.memory_reserved()) == (512, 2 * MIB)


@pytest.mark.parametrize(
    ("requested", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (530 * MIB, 530 * MIB),
    ],
)
def test_segments_are_2_20_or_a_multiple_of_2_mib(allocator, requested, segment):
    """pytorch#17120: 1 to 10 MiB splits 20 MiB, everything is a multiple of the 2 MiB page."""
    allocator.malloc(requested)
    assert allocator.memory_reserved() == segment


def test_zero_bytes_take_no_block(allocator):
    assert allocator.malloc(0) is None
    assert allocator.memory_stats()["allocation"]["all"]["allocated"] == 0


def test_small_requests_are_packed_into_one_segment(allocator):
    first, second, third = (allocator.malloc(size) for size in (1, 513, 512))
    assert offsets(allocator, first, second, third) == [0, 512, 1536]
    assert allocator.memory_reserved() == 2 * MIB


def test_a_large_remainder_up_to_1_mib_stays_with_its_block(allocator):
    assert allocator.malloc(19 * MIB).size == 20 * MIB
    block = allocator.malloc(19 * MIB - 512)
    assert block.size == 19 * MIB - 512
    assert block.next.size == MIB + 512


def test_270_mib_in_a_free_530_mib_block_leaves_260(allocator):
    """vllm#41268."""
    allocator.free(allocator.malloc(530 * MIB))
    block = allocator.malloc(270 * MIB)
    assert block.size == 270 * MIB
    assert block.next.size == 260 * MIB
    assert allocator.memory_reserved() == 530 * MIB


def test_best_fit_takes_the_smallest_block_then_the_lowest_address(allocator):
    sizes = (40 * MIB, 30 * MIB, 30 * MIB)
    wide, one, two = [allocator.malloc(size) for size in sizes]
    lowest, widest = min(one.address, two.address), wide.address
    for block in (wide, two, one):
        allocator.free(block)
    assert allocator.malloc(29 * MIB).address == lowest
    assert allocator.malloc(31 * MIB).address == widest


def test_free_neighbours_join_on_both_sides(allocator):
    blocks = [allocator.malloc(512) for _ in range(3)]
    allocator.free(blocks[0])
    allocator.free(blocks[2])
    assert allocator.memory_stats()["inactive_split"]["all"]["current"] == 2
    allocator.free(blocks[1])
    assert allocator.memory_stats()["inactive_split"]["all"]["current"] == 0
    assert allocator.malloc(MIB).address == blocks[1].segment.address


def test_streams_do_not_share_blocks(allocator):
    allocator.free(allocator.malloc(4 * MIB, stream=0))
    allocator.malloc(4 * MIB, stream=7)
    assert allocator.memory_reserved() == 40 * MIB


def test_empty_cache_gives_back_whole_segments_only(allocator):
    kept, freed = allocator.malloc(4 * MIB), allocator.malloc(30 * MIB)
    allocator.free(freed)
    allocator.empty_cache()
    assert allocator.memory_reserved() == 20 * MIB
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.memory_reserved() == 0
    assert allocator.segments == {}
    assert allocator.driver.reserved_bytes == 0


def test_a_second_free_is_refused(allocator):
    block = allocator.malloc(1)
    allocator.free(block)
    with pytest.raises(InternalError, match="freed twice"):
        allocator.free(block)


def test_cached_blocks_are_given_back_before_a_request_fails():
    allocator = CachingAllocator(0, DeviceMemory(100 * MIB))
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(80 * MIB)
    stats = allocator.memory_stats()
    assert stats["num_alloc_retries"] == 1
    assert stats["num_ooms"] == 0
    assert stats["num_sync_all_streams"] == 1
    assert allocator.memory_reserved() == 80 * MIB


def test_out_of_memory_carries_the_numbers():
    allocator = CachingAllocator(3, DeviceMemory(100 * MIB, occupied_bytes=10 * MIB))
    allocator.malloc(40 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(60 * MIB - 5)
    facts = caught.value.facts
    assert facts.device == 3
    assert facts.requested == 60 * MIB - 5
    assert facts.alloc_size == 60 * MIB
    assert (facts.device_total, facts.device_free) == (100 * MIB, 50 * MIB)
    assert (facts.allocated, facts.reserved, facts.process_bytes) == (40 * MIB, 40 * MIB, 50 * MIB)
    assert allocator.memory_stats()["num_ooms"] == 1
    assert allocator.malloc(50 * MIB).size == 50 * MIB


def test_peaks_and_sums_can_be_reset(allocator):
    block = allocator.malloc(4 * MIB)
    allocator.free(block)
    stats = allocator.memory_stats()["allocated_bytes"]["all"]
    assert stats == {"current": 0, "peak": 4 * MIB, "allocated": 4 * MIB, "freed": 4 * MIB}
    allocator.malloc(2 * MIB)
    allocator.reset_peak()
    allocator.reset_accumulated()
    stats = allocator.memory_stats()["allocated_bytes"]["large_pool"]
    assert stats == {"current": 2 * MIB, "peak": 2 * MIB, "allocated": 0, "freed": 0}
    assert allocator.memory_stats()["num_device_alloc"] == 0


def test_what_a_report_says_outlives_the_programs_resets(allocator):
    allocator.free(allocator.malloc(6 * GIB))
    with pytest.raises(OutOfMemory):
        allocator.malloc(32 * GIB)
    allocator.reset_peak()
    allocator.reset_accumulated()
    allocator.free(allocator.malloc(2 * MIB))
    assert allocator.memory_stats()["allocated_bytes"]["all"]["peak"] == 2 * MIB
    assert allocator.statistics.whole_run() == (6 * GIB, 6 * GIB, 1, 1)


STATS = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
         "inactive_split_bytes", "requested_bytes")  # fmt: skip


def test_statistics_have_pytorchs_keys(allocator):
    stats = allocator.memory_stats()
    for name in STATS:
        assert set(stats[name]) == {"all", "small_pool", "large_pool"}
        assert set(stats[name]["all"]) == {"current", "peak", "allocated", "freed"}
    for name in ("oversize_allocations", "oversize_segments"):
        assert set(stats[name]) == {"current", "peak", "allocated", "freed"}
    counts = {"num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"}
    assert counts <= set(stats)
    assert stats["max_split_size"] == -1


def test_snapshot_has_pytorchs_keys_and_describes_every_byte(allocator):
    block = allocator.malloc(100)
    allocator.malloc(3 * MIB, stream=5)
    small, large = sorted(allocator.snapshot()["segments"], key=lambda segment: segment["total_size"])
    assert set(small) == {
        "device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream",
        "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks",
    }  # fmt: skip
    assert (small["segment_type"], small["requested_size"], small["allocated_size"]) == ("small", 100, 512)
    assert (large["segment_type"], large["stream"], large["segment_pool_id"]) == ("large", 5, (0, 0))
    assert [(b["address"], b["size"], b["state"]) for b in small["blocks"]] == [
        (block.address, 512, "active_allocated"),
        (block.address + 512, 2 * MIB - 512, "inactive"),
    ]


def test_actions_are_told_in_pytorchs_order_and_words(allocator):
    heard = []
    allocator.on_action = lambda action, address, size, stream, block: heard.append((action, size))
    block = allocator.malloc(100)
    allocator.free(block)
    allocator.empty_cache()
    assert heard == [
        ("segment_alloc", 2 * MIB), ("alloc", 100), ("free_requested", 100), ("free_completed", 100),
        ("segment_free", 2 * MIB),
    ]  # fmt: skip


def test_context_is_kept_while_allocated(allocator):
    block = allocator.malloc(100, context="train.py:7")
    assert allocator.snapshot(frames=lambda note: [{"name": note}])["segments"][0]["blocks"][0]["frames"] == [
        {"name": "train.py:7"}
    ]
    allocator.free(block)
    assert block.context is None


def test_accesses_survive_split_and_join(allocator):
    allocator = CachingAllocator(0, DeviceMemory(GIB), join_accesses=lambda a, b: a | b)
    first, second = allocator.malloc(512), allocator.malloc(512)
    keep = allocator.malloc(512)
    first.accesses, second.accesses = {"a"}, {"b"}
    allocator.free(first)
    allocator.free(second)
    again = allocator.malloc(512)
    assert again.accesses == {"a", "b"}
    assert again.next.accesses == {"a", "b"}
    assert keep.accesses is None


def test_addresses_are_unique_and_2_mib_aligned_and_the_same_every_time():
    def addresses():
        allocator = CachingAllocator(1, DeviceMemory(64 * GIB, device=1))
        return [allocator.malloc(size * MIB).segment.address for size in (1, 3, 44, 22, 530, 16)]

    found = addresses()
    assert found == addresses()
    assert all(address % (2 * MIB) == 0 and address >> 40 == 0x7E for address in found)
