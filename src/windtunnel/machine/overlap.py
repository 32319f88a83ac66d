"""Whether two strided views of one storage have a byte in common: two columns of a matrix have none.

A view is runs of bytes at a start plus multiples of its steps. Two views are apart where the greatest common divisor of
all steps keeps them apart (columns, channels, every other element). What that leaves open is decided by walking the
runs in order, exactly, up to `MOST_RUNS` of them; beyond that, views whose hulls meet count as overlapping.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from math import gcd, prod
from typing import NamedTuple

MOST_RUNS = 4096


class Strided(NamedTuple):
    """Bytes of a view that has gaps: runs of `run` bytes at `start` plus multiples of `steps`, (bytes, count) each."""

    start: int
    run: int
    steps: tuple[tuple[int, int], ...] = ()

    @property
    def runs(self) -> int:
        """How many runs it has."""
        return prod(count for _, count in self.steps)

    def starts(self) -> Iterator[int]:
        """Where its runs begin, in no order."""
        for at in product(*(range(0, step * count, step) for step, count in self.steps)):
            yield self.start + sum(at)


def strided(start: int, element_size: int, shape: Iterable[int], stride: Iterable[int]) -> Strided | None:
    """A tensor's bytes from byte `start` on (`stride` in elements); None where it has no gaps."""
    run = element_size
    steps: list[tuple[int, int]] = []
    for elements, count in sorted(zip(stride, shape, strict=True)):
        step = elements * element_size
        if count == 1 or step == 0:
            continue
        if not steps and step <= run:
            run += step * (count - 1)
        elif steps and step == steps[-1][0] * steps[-1][1]:
            steps[-1] = steps[-1][0], steps[-1][1] * count
        else:
            steps.append((step, count))
    return Strided(start, run, tuple(steps)) if steps else None


def overlap(one: Strided, other: Strided) -> bool:
    """Whether two views whose hulls meet share a byte; true where that would take too long to decide."""
    period = gcd(*(step for step, _ in (*one.steps, *other.steps)))
    if period:
        shift = (other.start - one.start) % period
        if one.run <= shift and shift + other.run <= period:
            return False
    if one.runs + other.runs > MOST_RUNS:
        return True
    return _meet(one, other)


def surely_overlap(one: Strided, other: Strided) -> bool:
    """Whether two views share a byte; false where that would take too long to decide, and no part of them shows it."""
    if one.start >= _end(other) or other.start >= _end(one):
        return False
    return _meet(_part(one), _part(other))


def _end(view: Strided) -> int:
    return view.start + view.run + sum(step * (count - 1) for step, count in view.steps)


def _part(view: Strided) -> Strided:
    """As many of its runs as can be walked, from its beginning."""
    while view.runs > MOST_RUNS // 2:
        longest = max(range(len(view.steps)), key=lambda place: view.steps[place][1])
        steps = [(step, count // 2 if place == longest else count) for place, (step, count) in enumerate(view.steps)]
        view = view._replace(steps=tuple(steps))
    return view


def _meet(one: Strided, other: Strided) -> bool:
    ends = [0, 0]  # of the runs so far
    for begin, which in sorted([(at, 0) for at in one.starts()] + [(at, 1) for at in other.starts()]):
        if begin < ends[1 - which]:
            return True
        ends[which] = max(ends[which], begin + (one, other)[which].run)
    return False
