"""The data files of `data/`, and how short a kernel can be."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from windtunnel.operators.classes import OperatorClass
from windtunnel.trace.plain import Json

DATA = Path(__file__).parent / "data"


@cache
def read(name: str) -> Json:
    """A data file, parsed once."""
    return tomllib.loads((DATA / f"{name}.toml").read_text(encoding="utf-8"))


def floor_scale(generation: str) -> float:
    """How long a generation's shortest kernels are, relative to Volta's."""
    return float(read("host")["floor_scale"].get(generation, 1.0))


def stamp_us(generation: str) -> float:
    """How long an event that tells the time keeps its stream from going on, in microseconds."""
    known = read("host")["stamp_us"]
    return float(known.get(generation, known["volta"]))


def shortest_ns(operator: OperatorClass, generation: str) -> float:
    """The shortest kernel of a class on a generation of GPUs, in nanoseconds."""
    return 1000.0 * operator.floor_us * floor_scale(generation)
