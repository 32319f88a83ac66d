"""Error bands: the 80 % interval of cross-validated residuals, by kernel family and distance from the data."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from math import log
from typing import NamedTuple

from windtunnel.cost.files import read

WIDEST = 0.9
"""A predicted time is never negative."""

LEAST = 0.05
"""A step whose kernels' bands are this or wider is not said to be known better, however its errors cancel."""


def band(family: str, distance: str, gpu: str = "", us: float | None = None) -> float:
    """The relative half-width that holds 80 % of the measured over the predicted times; 0.5 where nothing says it.

    `gpu` is the one that the constants were fitted on, or its generation: its own residuals are taken where there are
    some. A kernel of `us` microseconds has the width of those that take about as long, where the family has that.
    """
    known = known_band(family, distance, gpu)
    if us is None or not known.durations:
        return min(WIDEST, known.width)
    for (low, narrow), (high, wide) in pairwise(known.durations):
        if us < high:
            return min(WIDEST, narrow + (wide - narrow) * max(0.0, log(max(us, 1e-3) / low)) / log(high / low))
    return min(WIDEST, known.durations[-1][1])


class KnownBand(NamedTuple):
    """A family's band, and pairs of a duration in microseconds and the band of kernels that take about as long."""

    width: float
    durations: tuple[tuple[float, float], ...]


@cache
def known_band(family: str, distance: str, gpu: str) -> KnownBand:
    """The row of the data file: the GPU's where it has one of its own, else that of all."""
    rows = [row for row in read("bands")["band"] if row["family"] == family and row["distance"] == distance]
    for row in sorted(rows, key=lambda row: row.get("gpu") != gpu):
        if row.get("gpu", gpu) == gpu:
            return KnownBand(float(row["width"]), tuple(zip(row.get("us", ()), row.get("widths", ()), strict=True)))
    return KnownBand(0.5, ())


class Kernels(NamedTuple):
    """The kernels of a step as its band sees them: the mean of their bands, by their time, and how many there are.

    `number` is that of different kernels that would take equal parts of the time: the same call has the same error
    however often it runs, and one that takes nearly all of a step leaves nothing to cancel with.
    """

    mean: float
    number: float

    @classmethod
    def of(cls, some: Iterable[tuple[float, float]]) -> Kernels | None:
        """Of the time and the band of each different kernel; None where none takes any time."""
        times, widths = zip(*some, strict=True) if (some := list(some)) else ((), ())
        total = sum(times)
        if not total:
            return None
        mean = sum(time * width for time, width in zip(times, widths, strict=True)) / total
        return cls(mean, total**2 / sum(time**2 for time in times))


@cache
def step_share(compiled: bool = False) -> float:
    """What of the mean of its kernels' bands holds 80 % of steps of many kernels, since their errors cancel in part.

    Steps with kernels that Inductor generated have a share of their own.
    """
    return float(read("bands")["compiled_step" if compiled else "step"]["share"])


def of_step(kernels: Kernels, compiled: bool = False) -> float:
    """The band of a step: that of its kernel where it has one, the share of many where it has many."""
    share = step_share(compiled)
    return min(WIDEST, max(min(kernels.mean, LEAST), kernels.mean * (share + (1.0 - share) / kernels.number)))
