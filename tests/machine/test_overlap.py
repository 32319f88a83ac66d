"""Strided views of one storage: exactly those overlap that share a byte."""

from __future__ import annotations

import random

import pytest

from windtunnel.machine.order import Access, Accesses
from windtunnel.machine.overlap import MOST_RUNS, Strided, overlap, strided, surely_overlap

SIZE = 4


def columns(first: int, count: int, rows: int = 6, width: int = 10) -> Strided | None:
    """Columns of a matrix of `rows` by `width` elements."""
    return strided(first * SIZE, SIZE, (rows, count), (width, 1))


def bytes_of(view: Strided) -> set[int]:
    return {at for start in view.starts() for at in range(start, start + view.run)}


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((6, 10), (10, 1)), ((10, 6), (1, 10)), ((5, 1, 3), (3, 99, 1)), ((4, 7), (0, 1)), ((4, 3), (1, 1)), ((), ())],
)
def test_a_view_without_gaps_is_none(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    assert strided(0, SIZE, shape, stride) is None


def test_columns_that_interleave_do_not_overlap() -> None:
    left, right = columns(0, 3), columns(3, 2)
    assert left is not None
    assert right is not None
    assert not overlap(left, right)
    assert not overlap(right, left)
    assert overlap(left, Strided(2 * SIZE, 2 * SIZE))
    assert not overlap(left, Strided(3 * SIZE, 7 * SIZE))


def test_overlap_is_what_the_bytes_say() -> None:
    assert not [seed for seed in range(300) if not answers_as_the_bytes(random.Random(seed))]


def answers_as_the_bytes(draw: random.Random) -> bool:
    """Whether two views that are drawn overlap as their bytes do."""

    def view() -> Strided:
        dims = draw.randrange(4)
        shape = [draw.randrange(1, 5) for _ in range(dims)]
        stride = [draw.choice((0, 1, 2, 3, 5, 6, 7, 12, 30)) for _ in range(dims)]
        size = draw.choice((1, 2, 4, 8))
        start = draw.randrange(40)
        found = strided(start, size, shape, stride)
        exact = {
            start + sum(i * s for i, s in zip(at, stride, strict=True)) * size + byte
            for at in positions(shape)
            for byte in range(size)
        }
        made = found or Strided(start, max(exact) + 1 - start)
        assert bytes_of(made) == exact
        return made

    one, other = view(), view()
    return overlap(one, other) == surely_overlap(one, other) == bool(bytes_of(one) & bytes_of(other))


def positions(shape: list[int]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for count in shape:
        found = [(*at, i) for at in found for i in range(count)]
    return found


def test_what_takes_too_long_to_walk_counts_as_overlapping_unless_the_steps_keep_it_apart() -> None:
    many = Strided(0, 4, ((12, MOST_RUNS), (12 * MOST_RUNS + 8, 2)))
    assert overlap(many, Strided(4, 4, ((20, MOST_RUNS),)))
    assert not overlap(Strided(0, 4, ((12, MOST_RUNS),)), Strided(4, 4, ((24, MOST_RUNS),)))


def test_a_write_with_gaps_replaces_only_its_like() -> None:
    accesses = Accesses()
    accesses.add(Access(1, 1, 0, 240, True, 0, 0))
    accesses.add(Access(1, 2, 0, 212, True, 0, 0, columns(0, 3)))
    accesses.add(Access(1, 3, 0, 212, True, 0, 0, columns(0, 3)))
    assert [write.epoch for write in accesses.writes] == [1, 3]
    found = accesses.conflict(Access(2, 1, 12, 220, False, 0, 0, columns(3, 2)), {1: 1})
    assert found is None
    found = accesses.conflict(Access(2, 1, 8, 208, False, 0, 0, columns(2, 1)), {1: 1})
    assert found is not None
    assert found.epoch == 3


def test_of_many_runs_a_part_shows_it_or_nothing_is_said() -> None:
    one, beside = columns(0, 3, rows=MOST_RUNS), columns(5, 3, rows=MOST_RUNS)
    assert one is not None
    assert beside is not None
    assert surely_overlap(one, columns(2, 3, rows=MOST_RUNS) or one)
    assert not surely_overlap(one, beside)
    late = one._replace(start=one.start + (MOST_RUNS - 1) * 10 * SIZE)
    assert not surely_overlap(one, late)  # they share the last row of one alone
