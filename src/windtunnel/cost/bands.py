"""Error bands: the 80 % interval of cross-validated residuals, by kernel family and distance from the data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from math import log
from typing import NamedTuple

from windtunnel.cost.files import read
from windtunnel.cost.sustained import Limit
from windtunnel.trace.operation import Signature, without_reuse

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
    return known.width_at(us) if us is not None and known.durations else min(WIDEST, known.width)


class KnownBand(NamedTuple):
    """A family's band, and pairs of a duration in microseconds and the band of kernels that take about as long."""

    width: float
    durations: tuple[tuple[float, float], ...]

    def width_at(self, us: float) -> float:
        """The band of kernels that take about so long."""
        for (low, narrow), (high, wide) in pairwise(self.durations):
            if us < high:
                return min(WIDEST, narrow + (wide - narrow) * max(0.0, log(max(us, 1e-3) / low)) / log(high / low))
        return min(WIDEST, self.durations[-1][1])


@cache
def known_band(family: str, distance: str, gpu: str) -> KnownBand:
    """The row of the data file: the GPU's where it has one of its own, else that of all."""
    rows = [row for row in read("bands")["band"] if row["family"] == family and row["distance"] == distance]
    for row in sorted(rows, key=lambda row: row.get("gpu") != gpu):
        if row.get("gpu", gpu) == gpu:
            return KnownBand(float(row["width"]), tuple(zip(row.get("us", ()), row.get("widths", ()), strict=True)))
    return KnownBand(0.5, ())


class Known(NamedTuple):
    """How well a kernel's time is known.

    `of_steps` says that its band is that of whole steps, in which the errors of kernels have cancelled already,
    `limited` that a power limit slows it in trainings that hold their load, `family` of which class it is.
    """

    band: float
    of_steps: bool = False
    limited: bool = False
    family: str = ""


class Kernels(NamedTuple):
    """The kernels of a step as its band sees them: means of their bands, by their time, and how many there are.

    `number` is that of classes of kernels that would take equal parts of the time: kernels of one class err alike, and
    one that takes nearly all of a step leaves nothing to cancel with. `single` is the part
    of kernels that were timed one by one in the mean, `whole` that of those known from whole steps, `limited` the
    part of the time that a power limit can slow, and `attention` that of fused attention.
    """

    single: float
    number: float
    whole: float = 0.0
    limited: float = 0.0
    attention: float = 0.0

    @classmethod
    def of(cls, some: Iterable[tuple[float, Known]]) -> Kernels | None:
        """Of the time and the band of each different kernel; None where none takes any time."""
        some = list(some)
        total = sum(time for time, _ in some)
        if not total:
            return None
        parts = {of_steps: sum(time * one.band for time, one in some if one.of_steps == of_steps) / total
                 for of_steps in (False, True)}  # fmt: skip
        classes: dict[str | int, float] = defaultdict(float)
        for at, (time, one) in enumerate(some):
            classes[one.family or at] += time
        number = total**2 / sum(time**2 for time in classes.values())
        limited = sum(time for time, one in some if one.limited) / total
        return cls(parts[False], number, parts[True], limited, classes.get("attention", 0.0) / total)

    @classmethod
    def of_calls(cls, some: Iterable[tuple[Signature, float, Known]]) -> Kernels | None:
        """The same of calls with their times, of which those are one kernel that differ in what L2 held alone."""
        times: dict[Signature, float] = {}
        known: dict[Signature, tuple[float, Known]] = {}
        for signature, time, one in some:
            call = without_reuse(signature)
            times[call] = times.get(call, 0.0) + time
            known[call] = max(known.get(call, (0.0, one)), (time, one))
        return cls.of((time, known[call][1]) for call, time in times.items())


@cache
def cancelling() -> float:
    """By what the errors of kernels cancel: times the mean of their bands, over the root of their number, it holds 80 %
    of steps."""
    return float(read("bands")["step"]["factor"])


def of_step(kernels: Kernels, limit: Limit | None = None) -> float:
    """The band of a step: errors of single kernels cancel with their number, those known from whole steps do not.

    A run that met its power limit is like the trainings that tell of the `limit`, as far as it is made of kernels that
    the limit slows as they are: it has their band. Which attention it has, those trainings do not tell.
    """
    mean = kernels.single + kernels.whole
    found = kernels.whole + kernels.single * min(1.0, cancelling() / kernels.number**0.5)
    if limit is not None:
        alike = min(1.0, kernels.limited / limit.part)
        found = alike * (limit.band + limit.attention * kernels.attention) + (1.0 - alike) * found
    return float(min(WIDEST, max(min(mean, LEAST), found)))
