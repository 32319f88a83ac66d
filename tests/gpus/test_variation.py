"""GPUs of one model differ by a seed, and the slowest of many is as slow as order statistics say."""

from statistics import fmean, stdev

import pytest

from windtunnel.gpus import variation


@pytest.mark.parametrize(("ranks", "share"), [(1, 0.0), (2, 0.0083), (8, 0.021), (128, 0.038), (512, 0.045)])
def test_the_slowest_of_many_is_slower_than_one(ranks: int, share: float) -> None:
    assert variation.slowest(ranks) == pytest.approx(share, abs=0.001)


@pytest.mark.parametrize("ranks", [2, 8, 64, 512])
def test_the_slowest_that_seeds_draw_is_on_average_the_expected_one(ranks: int) -> None:
    seeds = range(2000 // ranks + 40)
    found = [variation.pace(seed, range(ranks)) - 1.0 for seed in seeds]
    error = stdev(found) / len(found) ** 0.5
    expected = variation.slowest(ranks) - variation.slowest(8)
    assert abs(fmean(found) - expected) < 3 * error + 0.0005
    assert variation.later(ranks) == max(0.0, expected)


def test_the_clock_is_that_of_the_slowest_of_eight() -> None:
    """Its shares were fitted on trainings of eight GPUs, which waited for it: it is not counted twice."""
    assert [variation.later(gpus) for gpus in (1, 2, 8)] == [0.0, 0.0, 0.0]
    assert 0.0 < variation.later(16) < variation.later(64) < variation.later(512)
    assert variation.later(512) == pytest.approx(0.024, abs=0.001)


def test_a_seed_draws_the_same_gpus_each_time_and_another_draws_others() -> None:
    assert variation.drawn(7, 3) == variation.drawn(7, 3)
    assert len({variation.drawn(seed, gpu) for seed in range(10) for gpu in range(10)}) == 100
    slowest = max(variation.drawn(7, gpu) for gpu in range(8))
    assert variation.pace(7, range(8)) == 1.0 + slowest - variation.slowest(8)
