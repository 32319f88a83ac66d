"""How far back memory was touched: a device's latest operands, in order, as integers."""

import pytest

from windtunnel.cost import cache
from windtunnel.cost.bands import Kernels, Known
from windtunnel.cost.model import CostModel
from windtunnel.gpus import find
from windtunnel.machine.reuse import FURTHEST_BYTES, Reuse
from windtunnel.trace.operation import REUSED, Signature

MIB = 1 << 20
A, B, C, D = (number << 32 for number in range(1, 5))


def distances(said):
    """Parts of the bytes by their distance in MiB, to the nearest quarter of a factor of two."""
    return {round(one.distance_bytes / MIB): one.part for one in cache.reused(said)}


def test_memory_that_was_never_touched_has_no_distance():
    assert Reuse().touch([(A, 8 * MIB), (B, 8 * MIB)]) == ""


def test_a_loop_over_the_same_operands_has_all_of_them_between():
    reuse = Reuse()
    first = reuse.touch([(A, 8 * MIB), (B, 8 * MIB)])
    second = reuse.touch([(A, 8 * MIB), (B, 8 * MIB)])
    assert first == ""
    assert distances(second) == {17: 1.0}  # 16, and the middle of its step


def test_what_the_kernel_before_wrote_is_near_and_its_result_unknown():
    reuse = Reuse()
    reuse.touch([(A, 8 * MIB), (B, 8 * MIB)])
    assert distances(reuse.touch([(B, 8 * MIB), (C, 8 * MIB)])) == {17: 0.5}


def test_memory_that_several_kernels_touch_counts_once():
    reuse = Reuse()
    reuse.touch([(A, 8 * MIB)])
    for _ in range(10):
        reuse.touch([(B, 8 * MIB)])
    assert distances(reuse.touch([(A, 8 * MIB)])) == {17: 1.0}


def test_a_part_that_was_touched_is_all_that_can_be_there():
    reuse = Reuse()
    reuse.touch([(A, 2 * MIB)])
    assert distances(reuse.touch([(A, 8 * MIB)])) == {2: 0.25}


def test_no_cache_remembers_what_is_too_far_back():
    reuse = Reuse()
    reuse.touch([(A, 8 * MIB)])
    reuse.touch([(B, FURTHEST_BYTES)])
    assert reuse.touch([(A, 8 * MIB)]) == ""


def test_an_operand_that_is_given_twice_is_one():
    reuse = Reuse()
    reuse.touch([(A, 8 * MIB), (A, 8 * MIB)])
    assert distances(reuse.touch([(A, 8 * MIB)])) == {9: 1.0}


def time_us(key, megabytes, said=""):
    size = megabytes * MIB // 2
    detail = ((REUSED, said),) if said else ()
    call = Signature("aten::relu", ((size // 4,),) * 2, ("float32",) * 2, 1, 0, size, size, detail)
    return CostModel(find(key), (12, 4)).priced(call).duration_ns / 1000.0


def near(megabytes):
    return cache.told({cache.step_of(megabytes * MIB): 1.0})


def test_a_kernel_is_faster_the_more_of_its_bytes_l2_holds():
    """# issue 40: a ReLU of 32 MB takes 8.4 us on a card whose L2 holds 96 MB (LeetCUDA), more from memory."""
    cold, held = time_us("L20", 32), time_us("L20", 32, near(32))
    assert 6.0 < held < 10.0
    assert 35.0 < cold < 50.0
    half = time_us("L20", 32, cache.told({cache.step_of(32 * MIB): 0.5}))
    assert held < half < cold


def test_what_is_further_back_than_l2_is_large_changes_nothing():
    assert time_us("V100", 32, near(32)) == pytest.approx(time_us("V100", 32), rel=1e-4)


def test_another_gpu_is_asked_of_the_same_distances():
    """A trace that is priced again on a GPU with a larger L2: the same signature says what that holds."""
    said = near(45)
    assert time_us("L20", 45, said) < 0.3 * time_us("L20", 45)
    assert time_us("A100", 45, said) > 0.5 * time_us("A100", 45)


def test_a_kernel_is_no_better_known_because_it_came_with_other_distances():
    calls = [Signature("aten::relu", detail=((REUSED, said),) if said else ()) for said in ("", near(8), near(16))]
    kernels = Kernels.of_calls((call, 10.0, Known(0.2)) for call in calls)
    assert kernels == Kernels(0.2, 1.0)
