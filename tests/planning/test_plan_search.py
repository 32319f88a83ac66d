"""The largest value that fits: both sides are tried, nothing beyond what was asked, and few values are needed."""

import pytest

from windtunnel.planning.search import Search
from windtunnel.planning.space import Largest

GIB = 1 << 30


def run(largest: Largest, room: int, needed, taken=None, fits=None) -> tuple[Search, list[int]]:
    """A search on a program whose memory is `needed(value)`; the values that it tried, in order."""
    search = Search(largest, room)
    tried = []
    while (value := search.next_value()) is not None:
        assert value not in tried
        tried.append(value)
        fit = needed(value) <= room if fits is None else fits(value)
        search.found(value, fit, needed(value), None if taken is None else taken(value))
    return search, tried


@pytest.mark.parametrize("room", [2, 7, 16, 24, 80, 192])
def test_memory_that_grows_evenly_takes_a_few_tries(room: int) -> None:
    needed = lambda value: GIB + value * 311_000_000  # noqa: E731
    search, tried = run(Largest("option", "-b"), room * GIB, needed)
    assert search.best == (room * GIB - GIB) // 311_000_000
    assert {search.best, search.best + 1} <= set(tried)
    assert len(tried) <= 5


def test_nothing_beyond_the_range_is_tried() -> None:
    search, tried = run(Largest("option", "-b", 2, 48), 80 * GIB, lambda value: value * GIB)
    assert search.best == max(tried) == 48
    assert search.too_large is None


def test_only_multiples_of_the_step_are_tried() -> None:
    search, tried = run(Largest("option", "-b", 8, 500, 8), 80 * GIB, lambda value: value * GIB)
    assert search.best == 80
    assert search.too_large == 88
    assert all(value % 8 == 0 for value in tried)


def test_a_range_whose_lowest_value_does_not_fit_has_no_answer() -> None:
    search, tried = run(Largest("option", "-b", 4, 64), 2 * GIB, lambda value: value * GIB)
    assert search.best is None
    assert tried == [4]


@pytest.mark.parametrize("true", range(30, 41))
def test_fragmentation_between_what_is_needed_and_what_is_reserved_is_bisected(true: int) -> None:
    search, tried = run(
        Largest("option", "-b"), 40 * GIB, lambda v: v * GIB, lambda v: v * 4 * GIB // 3, lambda v: v <= true
    )
    assert search.best == true
    assert search.too_large == true + 1
    assert len(tried) <= 8


def test_memory_that_says_nothing_is_bisected() -> None:
    search, tried = run(Largest("option", "-b"), GIB, lambda value: 0, None, lambda value: value <= 777)
    assert (search.best, search.too_large) == (777, 778)
    assert len(tried) <= 20
