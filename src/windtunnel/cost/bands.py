"""Error bands: the 80 % interval of cross-validated residuals, by kernel family and distance from the data."""

from __future__ import annotations

from functools import cache

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


@cache
def step_share(compiled: bool = False) -> float:
    """What of the mean of its kernels' bands holds 80 % of whole steps, since errors of kernels cancel in part.

    Steps with kernels that Inductor generated have a share of their own.
    """
    return float(read("bands")["compiled_step" if compiled else "step"]["share"])


def of_step(mean: float, compiled: bool = False) -> float:
    """The band of a step whose kernels' bands, weighted by their time, have this mean."""
    return min(WIDEST, max(min(mean, LEAST), mean * step_share(compiled)))
