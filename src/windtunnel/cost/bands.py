"""Error bands: the 80 % interval of cross-validated residuals, by kernel family and distance from the data."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from windtunnel.cost.files import read

WIDEST = 0.9
"""A predicted time is never negative."""

LEAST = 0.05
"""A step whose kernels' bands are this or wider is not said to be known better, however its errors cancel."""


@cache
def band(family: str, distance: str, gpu: str = "") -> float:
    """The relative half-width that holds 80 % of the measured over the predicted times; 0.5 where nothing says it.

    `gpu` is the one that the constants were fitted on: its own residuals are taken where there are some.
    """
    rows = [row for row in read("bands")["band"] if row["family"] == family and row["distance"] == distance]
    for row in sorted(rows, key=lambda row: row.get("gpu") != gpu):
        if row.get("gpu", gpu) == gpu:
            return min(WIDEST, float(row["width"]))
    return 0.5


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
