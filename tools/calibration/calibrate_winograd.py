"""Fit the ways of FP32's 3 x 3 convolutions, cross-validate them, and write both as data.

Each way's constants are fitted on the timings of a GPU that took it; what is predicted is the fastest way. A shape is
left out with its fold, a GPU by taking the constants of the generation that serves those without rows, or of the other
GPU of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tools.corpus import tables
from tools.docs import figures
from tools.fitting import (
    Array,
    Mask,
    Residuals,
    band_rows,
    fold_of,
    forget,
    left_out,
    loss_of,
    pooled,
    report_all,
    rounded,
    search,
    update_bands,
    write,
)
from windtunnel import gpus
from windtunnel.cost.families import winograd
from windtunnel.cost.families.products import Arithmetic
from windtunnel.cost.families.winograd import Blocks, Constants, Machine, Work

HEAD = "FP32 convolutions of 3 x 3 filters: the constants of cost/families/winograd.py."
SOURCE = "fitted: NeuSight's published FP32 kernel timings (ASPLOS '25, MIT), {n}"
ARRAYS = Arithmetic(np.maximum, np.minimum, np.ceil)
BEGIN = Constants(Blocks(1.2, 2.0, 1e4), Blocks(1.2, 2.0, 1e4), Blocks(1.2, 3.0, 1e4), 30.0, 0.6)
WAYS: dict[str, Callable[..., Any]] = {
    "direct": winograd.direct_us,
    "fused": winograd.fused_us,
    "apart": winograd.apart_us,
}
BESIDE = {"fused": ("filters",), "apart": ("moved",)}
"""Constants of a way that are not its blocks'."""
STEP = 1.05
CLIP = 1.0
"""An error beyond e counts no more: another way than the named one may have run."""
LEFT = {"own GPU": "shapes", "borrowed": "the generation"}
"""What the rows of docs/figures/kernels.json leave out."""
SOURCES = {
    "own GPU": "cross-validated with folds of shapes left out",
    "own generation": "the constants of the other GPU of the generation",
    "borrowed": "the constants of the generation that serves those without rows",
}


class ConvolutionTimings(NamedTuple):
    """A GPU's convolutions: which way each took, the work, microseconds, and the fold of its shape."""

    machine: Machine
    way: Any
    work: Work
    us: Array
    folds: list[str]

    def of(self, wanted: Mask) -> ConvolutionTimings:
        """The wanted ones."""
        folds = [fold for fold, one in zip(self.folds, wanted.tolist(), strict=True) if one]
        work = Work(*(one[wanted] for one in self.work))
        return ConvolutionTimings(self.machine, self.way[wanted], work, self.us[wanted], folds)

    def predicted(self, constants: Constants) -> Array:
        """The time of the fastest way."""
        found = [way(self.work, constants, self.machine, ARRAYS) for way in WAYS.values()]
        fastest: Array = np.minimum.reduce(found)
        return fastest


def read() -> dict[str, ConvolutionTimings]:
    """The table, by GPU."""
    rows = tables.read("convolutions_fp32.csv.gz")
    found = {}
    for key in dict.fromkeys(row["gpu"] for row in rows):
        mine = [row for row in rows if row["gpu"] == key]
        images, read, made, side, us = (
            np.array([float(row[name]) for row in mine]) for name in ("images", "read", "made", "side", "us")
        )
        folds = [str(fold_of(" ".join(row[name] for name in ("images", "read", "made", "side")))) for row in mine]
        way = np.array([row["way"] for row in mine])
        found[key] = ConvolutionTimings(Machine(gpus.find(key)), way, Work(images, read, made, side, side), us, folds)
    return found


def fit(timings: ConvolutionTimings) -> Constants:
    """The constants with the least mean of the logarithmic errors of the ways that ran."""
    found = BEGIN
    for way, time_us in WAYS.items():
        mine = timings.of(timings.way == way)

        def loss(tried: Constants, of: Callable[..., Any] = time_us, mine: ConvolutionTimings = mine) -> float:
            return loss_of(of(mine.work, tried, mine.machine, ARRAYS), mine.us, CLIP)

        def move(tried: Constants, name: str, stride: int, way: str = way) -> Constants:
            if name in Blocks._fields:
                blocks = getattr(tried, way)
                return tried._replace(**{way: blocks._replace(**{name: getattr(blocks, name) * STEP**stride})})
            return tried._replace(**{name: getattr(tried, name) * STEP**stride})

        found = search(found, (*Blocks._fields, *BESIDE.get(way, ())), loss, move, 16)
    return found


def row_of(key: str, of: Constants, timings: ConvolutionTimings) -> tuple[str, dict[str, Any]]:
    """A row of the data file."""
    blocks = {way: [rounded(one) for one in getattr(of, way)] for way in WAYS}
    rest = {name: rounded(getattr(of, name)) for name in ("filters", "moved")}
    return "row", {"gpu": key, **blocks, **rest, "source": SOURCE.format(n=len(timings.us))}


def others(key: str, found: dict[str, ConvolutionTimings]) -> tuple[str, str] | None:
    """What another GPU's constants are to this one, and which that is; None for the one that serves others."""
    generation = gpus.find(key).generation
    of_generation = [one for one in found if one != key and gpus.find(one).generation == generation]
    if of_generation:
        return "own generation", of_generation[0]
    if generation == winograd.BORROWED:
        return None
    return "borrowed", next(one for one in found if gpus.find(one).generation == winograd.BORROWED)


def residuals(found: dict[str, ConvolutionTimings], constants: dict[str, Constants]) -> dict[str, list[Residuals]]:
    """Measured over predicted times, by how near the constants are."""
    seen: dict[str, list[Residuals]] = {distance: [] for distance in SOURCES}
    for key, timings in found.items():

        def predict(_: Any, rest: Mask, mine: Mask, timings: ConvolutionTimings = timings) -> Array:
            return timings.of(mine).predicted(fit(timings.of(rest)))

        own = left_out(timings.folds, predict)
        seen["own GPU"].append(Residuals("own GPU", key, timings.us / own, timings.us))
        if (other := others(key, found)) is not None:
            distance, by = other
            ratio = timings.us / timings.predicted(constants[by])
            seen[distance].append(Residuals(distance, key, ratio, timings.us))
    return seen


def calibrate() -> None:
    """Fit, write, and print the errors."""
    found = read()
    constants = {key: fit(timings) for key, timings in found.items()}
    write("winograd", HEAD, [row_of(key, constants[key], found[key]) for key in found])
    forget()
    seen = residuals(found, constants)
    update_bands(("winograd",), band_rows("winograd", seen, SOURCES))
    for some in seen.values():
        report_all([*some, pooled(some)])
    figures.record(
        "kernels", {f"winograd-{distance.split()[-1]}": figure(distance, seen[distance]) for distance in LEFT}
    )


def figure(distance: str, some: list[Residuals]) -> dict[str, Any]:
    """A row of docs/figures/kernels.json."""
    errors = np.abs(1.0 / pooled(some).ratio - 1.0)
    names = ", ".join(sorted({one.gpu.split("-")[0] for one in some}))
    row = {"what": "FP32 convolutions of 3 x 3", "gpu": names, "left": LEFT[distance], "number": len(errors)}
    half, most = (round(100 * float(np.quantile(errors, part)), 1) for part in (0.5, 0.9))
    return row | {"median": half, "p90": most}


def check() -> None:
    """Print the errors of the constants as they are."""
    for key, timings in read().items():
        machine = timings.machine.gpu
        stored, _ = winograd.fitted(machine.generation, machine.compute_capability)
        Residuals("as they are", key, timings.us / timings.predicted(stored)).report()
