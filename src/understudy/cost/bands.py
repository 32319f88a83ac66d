"""Error bands: the 80 % interval of cross-validated residuals, by kernel family and distance from the data."""

from __future__ import annotations

from functools import cache

from understudy.cost.operators import read

DISTANCES = ("own GPU", "own generation", "borrowed")
"""How far a prediction is from what its constants were fitted on."""


WIDEST = 0.9
"""A time is never said to be shorter than nothing."""


@cache
def band(family: str, distance: str, gpu: str = "") -> float:
    """The relative half-width that holds 80 % of the measured over the predicted times; 0.5 where nothing says it.

    `gpu` is the one that the constants were fitted on: its own residuals are taken where there are some.
    """
    rows = [row for row in read("bands")["band"] if row["family"] == family and row["distance"] == distance]
    for row in sorted(rows, key=lambda row: row.get("gpu") != gpu):
        if row.get("gpu", gpu) == gpu:
            return min(WIDEST, max(1.0 - float(row["low"]), float(row["high"]) - 1.0))
    return 0.5
