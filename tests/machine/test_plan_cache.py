"""The cuFFT plan cache: capacity, least recently used, plan bytes."""

import pytest

from windtunnel.machine.plan_cache import PlanCache


def test_capacity_is_4096_and_1023_before_cuda_10():
    assert PlanCache().max_size == 4096
    assert PlanCache(cuda_version=(10, 0)).max_size == 4096
    assert PlanCache(cuda_version=(9, 2)).max_size == 1023


def test_hits_and_misses():
    cache = PlanCache()
    assert not cache.use("a", 100)
    assert cache.use("a", 100)
    assert (cache.size, cache.hits, cache.misses, cache.plan_bytes) == (1, 1, 1, 100)


def test_the_plan_used_longest_ago_leaves():
    gone = []
    cache = PlanCache(on_evict=lambda key, plan_bytes: gone.append((key, plan_bytes)))
    cache.max_size = 2
    for key, plan_bytes in (("a", 10), ("b", 20), ("a", 10), ("c", 30)):
        cache.use(key, plan_bytes)
    assert gone == [("b", 20)]
    assert ("a" in cache, "b" in cache, "c" in cache) == (True, False, True)
    assert (cache.evictions, cache.plan_bytes) == (1, 40)


def test_a_smaller_capacity_drops_plans_at_once():
    cache = PlanCache()
    for key in range(10):
        cache.use(key, 1)
    cache.max_size = 3
    assert (cache.size, cache.evictions, cache.plan_bytes) == (3, 7, 3)
    assert [key in cache for key in (6, 7, 8, 9)] == [False, True, True, True]


def test_capacity_0_turns_the_cache_off():
    cache = PlanCache()
    cache.max_size = 0
    assert not cache.use("a", 1)
    assert not cache.use("a", 1)
    assert (cache.size, cache.misses) == (0, 2)


def test_clear_drops_plans_but_not_the_capacity():
    cache = PlanCache()
    cache.max_size = 7
    cache.use("a", 1)
    cache.clear()
    assert (cache.size, cache.plan_bytes, cache.max_size, cache.evictions) == (0, 0, 7, 0)


def test_bad_capacities_raise_pytorchs_errors():
    with pytest.raises(RuntimeError, match="cuFFT plan cache size must be non-negative, but got -1"):
        PlanCache().max_size = -1
    with pytest.raises(RuntimeError, match="cuFFT plan cache size can not be larger than 1023, but got 1024"):
        PlanCache(cuda_version=(9, 2)).max_size = 1024
