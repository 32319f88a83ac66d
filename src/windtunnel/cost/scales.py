"""By what bands are multiplied on a GPU: what programs that others timed on it need (`data/scales.toml`).

The rows are those of classes of kernels, and of all kernels that met the power limit of trainings (`POWER_LIMIT`):
their band is that of trainings on other cards, which last for hours, and shorter runs lose less.
"""

from __future__ import annotations

from functools import cache

from windtunnel.cost.files import read

POWER_LIMIT = "power limit"
"""The name under which kernels count that met it."""


@cache
def scale(gpu: str, name: str) -> float:
    """By what the bands of a class of kernels are multiplied on a GPU."""
    rows = read("scales").get("scale", ())
    return next((float(row["factor"]) for row in rows if row["gpu"] == gpu and row["class"] == name), 1.0)
