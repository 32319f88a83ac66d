"""Curves measured on one GPU (`understudy calibrate`), in place of those that come with understudy."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from understudy import gpus
from understudy.cost.curves import Curve
from understudy.errors import FileFormatError
from understudy.trace.plain import Json

_MEASURED_PRODUCTS = 0.9
"""What the cost model multiplies direct convolutions in FP32 by (`model._DIRECT`); a measured curve holds it."""


class Measured(NamedTuple):
    """One file: the GPU and generation it is of, curves by (class, precision), and the other tables as they are."""

    gpu: str
    generation: str
    curves: dict[tuple[str, str], Curve]
    dispatch_us: dict[str, float]
    driver: dict[str, float]
    links: dict[str, float]


@cache
def load(path: str) -> Measured:
    """A file that `understudy calibrate` wrote.

    Raises:
        FileFormatError: it is not such a file.
        OSError: it cannot be read.
    """
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        share = gpus.find(data["gpu"]).sustained_share
        curves = {(row["class"], row["precision"]): _curve(row, share) for row in data["curve"]}
        tables = (_numbers(data.get(name, {})) for name in ("dispatch_us", "driver", "links"))
        return Measured(str(data["gpu"]), str(data["generation"]), curves, *tables)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise FileFormatError(
            f"{path} is no file of measured curves ({error}): `understudy calibrate` writes one"
        ) from error


def _curve(row: Json, sustained_share: float) -> Curve:
    factor = _MEASURED_PRODUCTS if (row["class"], row["precision"]) == ("convolution", "fp32") else 1.0
    knots = sorted(zip(row["roofline_us"], row["efficiency"], row["band"], strict=True))
    return Curve(
        tuple(1000.0 * float(us) for us, _, _ in knots),
        tuple(float(efficiency) / factor for _, efficiency, _ in knots),
        tuple(float(band) for _, _, band in knots),
        False,
        str(row["source"]),
        sustained_share,
    )


def _numbers(table: Json) -> dict[str, float]:
    return {str(name): float(value) for name, value in table.items()}
