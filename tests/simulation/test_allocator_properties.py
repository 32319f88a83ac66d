"""The allocator under random operations: against a slow model, and against what must always hold."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from slow_allocator import SlowAllocator

from windtunnel.machine.memory.allocator import CachingAllocator
from windtunnel.machine.memory.blocks import ALLOCATED, FREE, PENDING, SIZE_SHIFT, UNMAPPED
from windtunnel.machine.memory.driver import DeviceMemory
from windtunnel.machine.memory.oom_text import OutOfMemory
from windtunnel.machine.memory.settings import parse

MIB, GIB = 1 << 20, 1 << 30
CONFS = (
    "",
    "max_split_size_mb:30",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:8,16:2,>:4],max_split_size_mb:64",
)


def random_size(numbers):
    """Sizes as programs ask for them: many small, some up to 100 MiB, often the same again."""
    kind = numbers.random()
    if kind < 0.3:
        return numbers.choice((4, 512, 2048, 4000, 65536, 3 * MIB, 5120000, 12 * MIB))
    return int(2 ** numbers.uniform(0, 26.6))


def counted(allocator, pool):
    stats = allocator.memory_stats()
    names = ("allocation", "allocated_bytes", "requested_bytes", "segment", "reserved_bytes", "inactive_split",
             "inactive_split_bytes")  # fmt: skip
    return {name: stats[name][pool]["current"] for name in names}


def shape(allocator):
    return sorted(
        (block.address, block.size, block.requested if block.state == ALLOCATED else None)
        for segment in allocator.segments.values()
        for block in segment.blocks()
    )


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("seed", range(6))
def test_fast_and_slow_allocator_agree_on_every_placement(seed, conf):
    print(f"seed {seed}, settings {conf!r}")
    numbers = random.Random(seed)
    total = numbers.choice((GIB // 2, 64 * GIB))
    fast = CachingAllocator(0, DeviceMemory(total), parse(conf))
    slow = SlowAllocator(DeviceMemory(total), parse(conf))
    live = []
    for step in range(1200):
        choice = numbers.random()
        if choice < 0.005:
            fast.empty_cache()
            slow.empty_cache()
        elif live and choice < 0.48:
            block = live.pop(numbers.randrange(len(live)))
            slow.free(block.address)
            fast.free(block)
        else:
            size, stream = random_size(numbers), numbers.choice((0, 0, 0, 5))
            try:
                block = fast.malloc(size, stream)
                live.append(block)
                found = block.address
            except OutOfMemory:
                found = None
            assert found == slow.malloc(size, stream), f"step {step}"
        if step % 40 == 0:
            assert shape(fast) == slow.shape(), f"step {step}"
            for pool, name in (("all", None), ("small_pool", "small"), ("large_pool", "large")):
                assert counted(fast, pool) == slow.count(name), f"step {step}"
    assert fast.driver.malloc_calls == slow.driver.malloc_calls
    assert fast.driver.free_calls == slow.driver.free_calls


def check(allocator, live, waiting=()):
    """What holds at every moment, whatever the settings."""
    ends = []
    for segment in allocator.segments.values():
        address = segment.address
        before = None
        for block in segment.blocks():
            assert block.address == address
            assert block.size % 512 == 0
            assert not (before in (FREE, UNMAPPED) and before == block.state), "free neighbours are joined"
            on_shelf = block.shelf.free.get(block.size << SIZE_SHIFT | block.address) is block
            assert on_shelf == (block.state == FREE)
            before = block.state
            address += block.size
        assert address == segment.address + segment.size, "bytes are conserved"
        ends.append((segment.address, segment.address + segment.size))
    ends.sort()
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(ends)), "segments do not overlap"
    blocks = [block for segment in allocator.segments.values() for block in segment.blocks()]
    stats = allocator.memory_stats()
    arrays = [name for name, stat in stats.items() if isinstance(stat, dict) and "all" in stat]
    current = {name: stats[name]["all"]["current"] for name in arrays}
    assert sorted(map(id, live)) == sorted(id(block) for block in blocks if block.state == ALLOCATED)
    assert current["allocated_bytes"] == sum(block.size for block in live)
    assert current["allocation"] == len(live)
    pending = [block for block in blocks if block.state == PENDING]
    assert len(pending) == len(waiting)
    assert current["active_bytes"] == current["allocated_bytes"] + sum(block.size for block in pending)
    mapped = sum(block.size for block in blocks if block.state != UNMAPPED)
    assert current["reserved_bytes"] == mapped == allocator.driver.reserved_bytes
    assert current["reserved_bytes"] >= current["active_bytes"] >= current["allocated_bytes"]
    assert current["allocated_bytes"] >= current["requested_bytes"] - sum(block.requested for block in pending)
    for name in current:
        for kind in ("all", "small_pool", "large_pool"):
            stat = stats[name][kind]
            assert stat["peak"] >= stat["current"] >= 0
            assert stat["allocated"] - stat["freed"] == stat["current"]
        assert current[name] == stats[name]["small_pool"]["current"] + stats[name]["large_pool"]["current"]


class Events:
    """Events that complete when told, by token."""

    def __init__(self):
        self.open = []

    def record(self, stream):
        token = [stream]
        self.open.append(token)
        return token

    def done(self, token):
        return not any(token is other for other in self.open)

    def synchronize(self, token):
        self.open = [other for other in self.open if other is not token]


class Machine(RuleBasedStateMachine):
    """All operations in any order, under one of the settings."""

    conf = ""

    def __init__(self):
        super().__init__()
        self.events = Events()
        self.allocator = CachingAllocator(0, DeviceMemory(GIB), parse(self.conf), self.events)
        self.live = []
        self.pools = 0

    @rule(size=st.one_of(st.integers(1, 5 * MIB), st.integers(1, 200 * MIB)), stream=st.integers(0, 2))
    def malloc(self, size, stream):
        try:
            self.live.append(self.allocator.malloc(size, stream))
        except OutOfMemory:
            stats = self.allocator.memory_stats()
            assert stats["num_ooms"] > 0

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        self.allocator.free(self.live.pop(data.draw(st.integers(0, len(self.live) - 1))))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), stream=st.integers(0, 3))
    def use_elsewhere(self, data, stream):
        self.allocator.record_stream(self.live[data.draw(st.integers(0, len(self.live) - 1))], stream)

    @rule()
    def complete_events(self):
        self.events.open = []
        self.allocator.process_events()

    @rule()
    def empty_cache(self):
        self.allocator.empty_cache()

    @rule(size=st.integers(1, 40 * MIB))
    def in_a_pool(self, size):
        pool = (0, 1 + self.pools % 2)
        if pool in self.allocator.pools and self.allocator.pools[pool].users == 0:
            return
        self.allocator.begin_allocate_to_pool(pool)
        try:
            self.live.append(self.allocator.malloc(size))
            assert self.live[-1].pool_id == pool
        except OutOfMemory:
            pass
        self.allocator.end_allocate_to_pool(pool)
        if self.allocator.pool_use_count(pool) > 1:
            self.allocator.release_pool(pool)

    @rule()
    def next_pool(self):
        self.pools += 1

    @invariant()
    def all_is_well(self):
        check(self.allocator, self.live, self.allocator.pending_blocks())

    def teardown(self):
        self.events.open = []
        self.allocator.process_events()
        for block in self.live:
            self.allocator.free(block)
        self.allocator.process_events()
        for pool in list(self.allocator.pools.values()):
            while pool.users:
                self.allocator.release_pool(pool.pool_id)
        self.allocator.empty_cache()
        assert self.allocator.driver.reserved_bytes == 0
        assert self.allocator.segments == {}
        assert self.allocator.pools == {}


class ExpandableMachine(Machine):
    conf = "expandable_segments:True"


class LimitedMachine(Machine):
    conf = (
        "max_split_size_mb:30,roundup_power2_divisions:8,garbage_collection_threshold:0.4,"
        "per_process_memory_fraction:0.9"
    )


for machine in (Machine, ExpandableMachine, LimitedMachine):
    machine.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase
TestExpandableMachine = ExpandableMachine.TestCase
TestLimitedMachine = LimitedMachine.TestCase


@given(st.integers(0, 2**20))
@settings(max_examples=10, deadline=None)
def test_two_runs_of_one_seed_are_identical(seed):
    def run():
        numbers = random.Random(seed)
        heard = []
        allocator = CachingAllocator(0, DeviceMemory(GIB))
        allocator.on_action = lambda *action: heard.append(action[:4])
        live = []
        for _ in range(200):
            if live and numbers.random() < 0.5:
                allocator.free(live.pop(numbers.randrange(len(live))))
            else:
                live.append(allocator.malloc(int(2 ** numbers.uniform(0, 22)), numbers.randrange(2)))
        return heard, allocator.snapshot(), allocator.memory_stats()

    assert run() == run()
