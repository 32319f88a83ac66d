"""Rows that users shared (`windtunnel verify --share`, exam/rows/): what they say of the clock as it was then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.corpus.outcomes import Outcome
from windtunnel.analysis import shared_rows

FOLDER = Path(__file__).parents[2] / "exam" / "rows"


def outcomes(gpu: str, folder: Path = FOLDER) -> Iterator[Outcome]:
    """Each row of a GPU whose name begins with `gpu`; those that only judge the clock are a group of their own."""
    for path in sorted(folder.glob("*.json")):
        row = shared_rows.load(path)
        if row.stand_in:
            raise SystemExit(f"{path} is of an emulated GPU in the place of a real one: it says nothing of the clock")
        if not row.gpu.startswith(gpu):
            continue
        predicted, within = row.predicted.median_ms, row.predicted.within_ms
        factors = None if within is None else (within[0] / predicted, within[1] / predicted)
        group = f"{row.gpu} shared{', only judging' if row.is_held_back else ''}"
        band = None if factors is None else factors[1] - 1.0
        yield Outcome(row.program, group, predicted, row.measured.median_ms, band, within=factors)
