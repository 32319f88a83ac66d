"""Curves measured on one GPU (`windtunnel calibrate`), in place of those that come with windtunnel."""

from __future__ import annotations

from functools import cache
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from windtunnel import foreign, gpus
from windtunnel.cost.curves import Curve
from windtunnel.cost.power import sustained_share
from windtunnel.errors import FileFormatError, UsageError


class MeasuredFile(NamedTuple):
    """One file: the GPU and generation it is of, curves by (class, precision), and the other tables as they are."""

    gpu: str
    generation: str
    curves: dict[tuple[str, str], Curve]
    dispatch_us: dict[str, float]
    driver: dict[str, float]
    links: dict[str, float]


Number = Annotated[float, Meta(ge=0, le=1e15)]
Point = Annotated[float, Meta(gt=0, le=1e9)]


class CurveRow(Struct, rename={"operator_class": "class"}):
    """One curve in the file: a class of operators in a precision, point by point."""

    operator_class: str
    precision: str
    roofline_us: list[Point]
    efficiency: list[Point]
    band: list[Number]
    source: str


class Tables(Struct):
    """The file's content."""

    gpu: str
    generation: str
    curve: list[CurveRow]
    dispatch_us: dict[str, Number] = {}
    driver: dict[str, Number] = {}
    links: dict[str, Number] = {}


@cache
def load(path: str) -> MeasuredFile:
    """A file that `windtunnel calibrate` wrote.

    Raises:
        FileFormatError: it is not such a file.
        UsageError: it cannot be read.
    """
    try:
        tables = foreign.from_toml(path)
    except OSError as error:
        raise UsageError(
            f"the curves {path} cannot be read: {error.strerror}; `windtunnel calibrate` writes them"
        ) from error
    data = foreign.typed(tables, Tables, path, "is no file of measured curves (`windtunnel calibrate` writes one)")
    gpu = gpus.find(data.gpu)
    curves = {
        (row.operator_class, row.precision): _curve(row, sustained_share(gpu, row.precision), path)
        for row in data.curve
    }
    return MeasuredFile(data.gpu, data.generation, curves, data.dispatch_us, data.driver, data.links)


def _curve(row: CurveRow, sustained_share: float, path: str) -> Curve:
    if not 0 < len(row.roofline_us) == len(row.efficiency) == len(row.band):
        raise FileFormatError(
            f"{path} is damaged: the curve of {row.operator_class} in {row.precision} needs as many sizes as "
            "efficiencies and bands, and one at least; `windtunnel calibrate` writes such a file"
        )
    knots = sorted(zip(row.roofline_us, row.efficiency, row.band, strict=True))
    return Curve(
        tuple(1000.0 * us for us, _, _ in knots),
        tuple(efficiency for _, efficiency, _ in knots),
        tuple(band for _, _, band in knots),
        False,
        row.source,
        sustained_share,
    )
