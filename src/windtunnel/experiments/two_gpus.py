"""Are two products on two GPUs at once twice as fast as in sequence on one?

The documents' fourth exercise promises "almost linear scaling". The host queues the first product and goes on at once
to the second, so two GPUs work at the same time in a program of one thread: no process, no thread, no special call.
What keeps the speed-up below two is the host: while it queues the second product, the first GPU has begun already.
Where a product takes no longer than its launch, the second GPU gains nothing.

Two streams on one GPU look alike and are not. They share the GPU's multiprocessors, so they gain only while one
product leaves some of these idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from windtunnel import torch as wt
from windtunnel.experiments import _measure
from windtunnel.experiments._result import Axis, Column, Fact, Plot, Result, Series, Table

GPUS = 2
VALUES = False
ALMOST_LINEAR = 1.8


@dataclass(frozen=True)
class TwoGpuSizes:
    """The sides of the square matrices, and how often each pair of products is timed."""

    sizes: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    repeats: int = 5


SIZES = TwoGpuSizes()
SMALL = TwoGpuSizes(sizes=(64, 512, 2048), repeats=1)


class PairTime(NamedTuple):
    """Two products of one size, in seconds: in sequence on one GPU, in two of its streams, on two GPUs."""

    n: int
    sequence_s: float
    streams_s: float
    two_gpus_s: float

    @property
    def speedup(self) -> float:
        """What the second GPU gains."""
        return self.sequence_s / self.two_gpus_s

    @property
    def streams_speedup(self) -> float:
        """What the second stream gains."""
        return self.sequence_s / self.streams_s


def run(sizes: TwoGpuSizes, cpu: None) -> Result:
    """All sizes on the first two GPUs."""
    rows = [_row(n, sizes.repeats) for n in sizes.sizes]
    facts, conclusion = _conclude(rows)
    columns = (
        Column("n"),
        Column("in sequence on one GPU", "s", ("gpu",)),
        Column("in two streams of it", "s", ("gpu",)),
        Column("on two GPUs", "s", ("gpu",)),
        Column("two streams are faster", "times", ("gpu",)),
        Column("two GPUs are faster", "times", ("gpu",)),
    )
    cells = tuple((*row, row.streams_speedup, row.speedup) for row in rows)
    return Result(
        name="two-gpus",
        devices=_measure.devices(),
        tables=(Table("Two products of n x n matrices", columns, cells),),
        plots=(_plot(rows),),
        facts=facts,
        conclusion=conclusion,
    )


def _row(n: int, repeats: int) -> PairTime:
    first, second = wt.require_gpus(2)
    a, b, there = (torch.rand(n, n, device=device) for device in (first, first, second))
    sides = [wt.stream(first) for _ in range(2)]

    def sequence() -> None:
        a @ a
        b @ b

    def streams() -> None:
        for side, matrix in zip(sides, (a, b), strict=True):
            with side:
                matrix @ matrix

    def two_gpus() -> None:
        a @ a
        there @ there

    times = [_measure.wall_s(work, repeats=repeats) for work in (sequence, streams, two_gpus)]
    return PairTime(n, *times)


def _plot(rows: list[PairTime]) -> Plot:
    xs = tuple(float(row.n) for row in rows)
    series = (
        Series("two GPUs", xs, tuple(row.speedup for row in rows), ("gpu",)),
        Series("two streams on one GPU", xs, tuple(row.streams_speedup for row in rows), ("gpu",)),
    )
    return Plot("Speed-up over two products in sequence", Axis("n", log=True), Axis("speed-up", "times"), series)


def _conclude(rows: list[PairTime]) -> tuple[dict[str, Fact], tuple[str, ...]]:
    small, large = rows[0], rows[-1]
    best = max(rows, key=lambda row: row.streams_speedup)
    linear = next((row.n for i, row in enumerate(rows) if all(r.speedup >= ALMOST_LINEAR for r in rows[i:])), None)
    facts = {
        "smallest": Fact(small.n),
        "largest": Fact(large.n),
        "speedup_smallest": Fact(small.speedup, "times"),
        "speedup_largest": Fact(large.speedup, "times"),
        "linear_from": Fact(linear),
        "almost_linear": Fact(ALMOST_LINEAR, "times"),
        "streams_best": Fact(best.streams_speedup, "times"),
        "streams_best_n": Fact(best.n),
        "streams_largest": Fact(large.streams_speedup, "times"),
    }
    first = "Two GPUs are {speedup_smallest} as fast as one at n = {smallest} and {speedup_largest} at n = {largest}"
    if linear is None:
        first += ": at these sizes they do not come near to twice as fast ({almost_linear} or more)."
    else:
        first += ": almost linear ({almost_linear} or more) from n = {linear_from} on."
    second = "Two streams on one GPU are {streams_largest} as fast at n = {largest}"
    if best.streams_speedup > 1.05:
        second += ", and {streams_best} at n = {streams_best_n}, where one product leaves a part of the GPU idle."
    else:
        second += " and no better at any other size."
    return facts, tuple(sentence.format(**facts) for sentence in (first, second))
