"""Rows of times that users share: what a program took on a real GPU beside what the clock said of it.

A row names the program by its hash alone, and no paths, users or machines. `windtunnel verify --share` writes one;
`make exam` judges those in `exam/rows/`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from windtunnel import foreign

FORMAT = 1
Milliseconds = Annotated[float, Meta(gt=0, le=1e9)]
Text = Annotated[str, Meta(max_length=200)]


class Measured(Struct, forbid_unknown_fields=True):
    """Steady steps on the GPU, or the run where it had no steps: their number, median and extremes."""

    steps: Annotated[int, Meta(ge=0, le=10**9)]
    median_ms: Milliseconds
    least_ms: Milliseconds
    most_ms: Milliseconds


class Predicted(Struct, forbid_unknown_fields=True):
    """The same emulated, and between which times four of five were said to lie."""

    median_ms: Milliseconds
    within_ms: tuple[Milliseconds, Milliseconds] | None


class SharedRow(Struct, forbid_unknown_fields=True):
    """A program on a machine. `stand_in` is whether an emulated GPU played the real one: such a row is for tests."""

    format: int
    program: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
    gpu: Text
    gpus: Annotated[int, Meta(ge=1, le=1024)]
    driver: Text
    cuda: Text
    versions: dict[Text, Text]
    host: Text
    stand_in: bool
    measured: Measured
    predicted: Predicted

    @property
    def is_held_back(self) -> bool:
        """Whether it only judges the clock: half of all programs, by their hash, are never fitted."""
        return int(self.program, 16) % 2 == 1


def program_of(text: bytes) -> str:
    """The name of a program in a row: the beginning of its hash."""
    return hashlib.sha256(text).hexdigest()[:16]


def measured(lengths_ns: list[int], run_ns: int) -> Measured:
    """Steps of these lengths, of which the first is left out where there are others; or a run without any."""
    steady = [length / 1e6 for length in (lengths_ns[1:] or lengths_ns)]
    found = steady or [run_ns / 1e6]
    return Measured(len(steady), *(round(one(found), 6) for one in (median, min, max)))


def write(row: SharedRow, path: Path) -> None:
    """The row as a file of its own."""
    path.write_text(json.dumps(msgspec.to_builtins(row), indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> SharedRow:
    """A row that somebody shared.

    Raises:
        FileFormatError: it is none.
        OSError: it cannot be read.
    """
    what = "a row that `windtunnel verify --share` wrote"
    return foreign.typed(foreign.from_json(foreign.read_bytes(path), path, what), SharedRow, path, f"is not {what}")
