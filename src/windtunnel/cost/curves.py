"""Efficiency curves: what part of the roofline an operator class reaches, by the size of its roofline time.

The curves are data (`data/curves.toml`, which `make calibrate` writes); this file only reads them. A curve is
a row of knots (roofline time in microseconds, efficiency). Between knots the efficiency is linear in the logarithm of
the time; below the first knot the time falls linearly to the class's floor; above the last it stays as it is.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from math import log
from typing import NamedTuple

from windtunnel.cost.files import read

_NEAREST = {
    "kepler": ("pascal",),
    "ampere-86": ("ampere",),
    "ada": ("ampere-86", "ampere"),
    "hopper": ("ampere",),
    "blackwell": ("hopper", "ampere"),
    "blackwell-120": ("ada", "ampere-86", "ampere"),
}
"""Whose curves a generation borrows, the nearest first: Ada's and Blackwell's cards have GA10x's kind of SM."""
_NO_TENSOR_CORES = ("kepler", "pascal")
BORROWED_BAND = 0.10
"""Added to the error band of a curve that belongs to another generation."""
UNKNOWN_BAND = 0.5


_UPPER = 0.75


class Curve(NamedTuple):
    """Knots in increasing roofline time, the band (relative half-width) at each, and where they come from.

    `sustained_share` is the one of the GPU that they were timed on (`Gpu.sustained_share`).
    """

    roofline_ns: tuple[float, ...]
    efficiency: tuple[float, ...]
    band: tuple[float, ...]
    borrowed: bool
    source: str
    sustained_share: float = 1.0

    def time_ns(self, roofline_ns: float, floor_ns: float, share: float, regular: float = 0.0) -> tuple[float, float]:
        """(duration, band) of work with this roofline time; `share` scales the efficiency.

        The timings behind a curve are of random shapes, and narrow ones spread far below the regular ones while the
        work is small. Work that is `regular` (from 0 to 1) is therefore taken from the upper half of the spread: a
        quarter above the median where the band is 0.44, and at the median where it is 0.11 (large work).
        """
        knots, values = self.roofline_ns, self.efficiency
        if regular:
            values = tuple(
                v * (1.0 + regular * _UPPER * max(0.0, b - 0.11)) for v, b in zip(values, self.band, strict=True)
            )
        if roofline_ns <= knots[0]:
            first = knots[0] / (values[0] * share)
            at_floor = max(first - floor_ns, 0.0)
            return floor_ns + at_floor * roofline_ns / knots[0], self.band[0]
        index = bisect_right(knots, roofline_ns)
        if index == len(knots):
            return max(floor_ns, roofline_ns / (values[-1] * share)), self.band[-1]
        low, high = knots[index - 1], knots[index]
        part = log(roofline_ns / low) / log(high / low)
        efficiency = values[index - 1] + part * (values[index] - values[index - 1])
        return max(floor_ns, roofline_ns / (efficiency * share)), self.band[index]


@cache
def _curves() -> dict[tuple[str, str, str], Curve]:
    found = {}
    for row in read("curves")["curve"]:
        curve = Curve(
            tuple(1000.0 * us for us in row["roofline_us"]),
            tuple(row["efficiency"]),
            tuple(row["band"]),
            False,
            row["source"],
            row.get("sustained_share", 1.0),
        )
        found[row["class"], row["precision"], row["generation"]] = curve
    return found


def share(kind: str, precision: str, generation: str) -> float:
    """A share that the published runs gave, of the nearest generation that has one; 1.0 where none has.

    "unaligned" is what matrix products of odd sizes keep of the tensor cores' efficiency, "convolution" what
    convolutions reach of the products' rate.
    """
    return share_of(kind, precision, generation)[0]


@cache
def share_of(kind: str, precision: str, generation: str) -> tuple[float, bool]:
    """The same, and whether it is this generation's and precision's own."""
    rows = {(row["precision"], row["generation"]): float(row["share"]) for row in read("curves").get(kind, ())}
    precision = precision if precision in ("tf32", "fp32") else "fp16"
    for relative in (generation, *_NEAREST.get(generation, ()), "ampere", "volta"):
        if (precision, relative) in rows:
            return rows[precision, relative], relative == generation
    return 1.0, False


@cache
def curve(operator_class: str, precision: str, generation: str) -> Curve:
    """The curve of a class at a precision on a generation, borrowed from the nearest one that has it.

    The order is: the generation's own curve, its nearest relative's, then the same at FP32. Before tensor cores, all
    precisions have FP32's.
    """
    if generation in _NO_TENSOR_CORES:
        precision = "fp32"
    curves = _curves()
    relatives = (generation, *_NEAREST.get(generation, ()), "ampere", "volta")
    if precision == "bf16":
        precision = "fp16"  # the same tensor cores at the same rate
    for kind in (precision, "fp16" if precision in ("fp4", "fp8", "int8") else precision, "fp32"):
        for relative in relatives:
            found = curves.get((operator_class, kind, relative))
            if found is None:
                continue
            if relative == generation and kind == precision:
                return found
            band = tuple(value + BORROWED_BAND for value in found.band)
            return found._replace(band=band, borrowed=True)
    return curve("elementwise", "fp32", generation)
