"""Rows as NumPy arrays, a block at a time, and what is asked of arrays that NumPy has no word for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from windtunnel.trace.rows import WIDTH, Rows

Numbers = NDArray[np.int64]
Truths = NDArray[np.bool_]


def columns(rows: Rows, first: int = 0) -> Iterator[Numbers]:
    """The rows from number `first` on, block by block: eight arrays each."""
    for piece in rows.pieces(first):
        if len(piece):
            numbers = np.frombuffer(piece.tobytes(), dtype=np.int64)  # a copy: the rows may change meanwhile
            yield numbers.reshape(-1, WIDTH).T.copy()


def highest(numbers: Numbers, carried: int) -> Numbers:
    """Before each of some numbers the highest so far, of which `carried` comes first."""
    before = np.empty_like(numbers)
    if len(numbers):
        before[0] = carried
        np.maximum(np.maximum.accumulate(numbers[:-1]), carried, out=before[1:])
    return before


def since(totals: Numbers, rows: Numbers, carried: int) -> Numbers:
    """What was added to running totals between each of some rows and the one before, `carried` before the first."""
    found = np.diff(totals[rows], prepend=0)
    found[0] += carried
    return found


def distinct(numbers: Numbers) -> tuple[Sequence[int], Numbers]:
    """The distinct numbers in the order in which they come first, and for each number its place among these."""
    found, first, place = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return found[order].tolist(), rank[place.reshape(-1)]


def sums(places: Numbers, of: Numbers, count: int) -> list[int]:
    """The sum of the numbers of each place."""
    found = np.zeros(count, dtype=np.int64)
    np.add.at(found, places, of)
    return [int(one) for one in found]


def counts(numbers: Numbers) -> Iterator[tuple[int, int]]:
    """The distinct numbers in the order in which they come first, with how often they come."""
    found, place = distinct(numbers)
    yield from zip(found, np.bincount(place, minlength=len(found)).tolist(), strict=True)
