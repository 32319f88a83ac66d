"""The tables of published measurements in this folder, as text."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def read(name: str) -> list[dict[str, str]]:
    """The rows of a CSV file, gzipped or not, by the names of its columns."""
    path = FOLDER / name
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
