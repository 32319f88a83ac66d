"""The allocator's cost: a million random operations, and its growth with the number of live blocks.

Times are of this process on the processor, so that other work on the machine counts little.
"""

import random
import time

import pytest

from windtunnel.machine.memory.allocator import CachingAllocator
from windtunnel.machine.memory.driver import DeviceMemory


def run(operations, live_blocks, seed=11):
    """Seconds of `operations` random frees, each with an allocation, among that many live blocks."""
    numbers = random.Random(seed)
    sizes = [int(2 ** numbers.uniform(4, 24)) for _ in range(4096)]
    allocator = CachingAllocator(0, DeviceMemory(1 << 46))
    live = [allocator.malloc(sizes[index & 4095]) for index in range(live_blocks)]
    picks = [numbers.randrange(live_blocks) for _ in range(operations)]
    begin = time.process_time()
    for index, pick in enumerate(picks):
        allocator.free(live[pick])
        live[pick] = allocator.malloc(sizes[index & 4095])
    return time.process_time() - begin


@pytest.mark.long
def test_a_million_random_allocations_and_frees_take_less_than_20_seconds():
    seconds = run(1_000_000, 5_000)
    print(f"1,000,000 frees and allocations among 5,000 live blocks: {seconds:.1f} s")
    assert seconds < 20


def test_cost_hardly_grows_with_live_blocks():
    few, many = run(60_000, 500), run(60_000, 50_000)
    print(f"60,000 pairs: {few:.2f} s among 500 live blocks, {many:.2f} s among 50,000")
    assert many < 4 * few


def test_freeing_every_other_of_many_equal_blocks_is_not_quadratic():
    def seconds(count):
        allocator = CachingAllocator(0, DeviceMemory(1 << 46))
        blocks = [allocator.malloc(512) for _ in range(count)]
        begin = time.process_time()
        for block in blocks[::2]:
            allocator.free(block)
        for _ in range(count // 2):
            allocator.malloc(512)
        return time.process_time() - begin

    few, many = seconds(10_000), seconds(100_000)
    print(f"10,000 equal blocks {few:.3f} s, 100,000 {many:.3f} s")
    assert many < 40 * few
