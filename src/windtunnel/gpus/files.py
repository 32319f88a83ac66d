"""Facts of a GPU from a `.toml` file or a saved trace, checked field by field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TypeVar

from windtunnel import foreign
from windtunnel.errors import FileFormatError

PRECISIONS = ("fp64", "fp64_tensor", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
PCIE_GENERATIONS = (3, 4, 5)
_PAIRS = ("aliases", "compute_capability")
_LEAST, _MOST = 1e-3, 1e18
_MAY_BE_ZERO = "nvlink_bandwidth_bytes_per_s"
_Facts = TypeVar("_Facts")


def read(path: Path, kind: type[_Facts], example: str) -> _Facts:
    """The facts in a file.

    Raises:
        FileFormatError: it is not TOML, or a fact is missing, unknown or of the wrong kind.
        UsageError: it cannot be read.
    """
    return checked(foreign.facts(path, str(path)), kind, path.name, example)


def checked(data: Mapping[str, object], kind: type[_Facts], name: str, example: str) -> _Facts:
    """An instance of the dataclass `kind` from plain data; `name` and `example` are for the message.

    Raises:
        FileFormatError: a fact is missing, unknown or of the wrong kind; the sentence names all of them.
    """
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    needed = {n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING}
    wrong = [f"{n} is missing" for n in sorted(needed - data.keys())]
    wrong += [f"{n} is unknown" for n in sorted(data.keys() - known)]
    wrong += [f"{n} {w}" for n in known if n in data and (w := _wrong(n, data[n], str(known[n].type)))]
    if wrong:
        raise FileFormatError(f"{name} does not describe a GPU: {', '.join(wrong)}; compare it with {example}")
    pairs = {n: tuple(value) for n, value in data.items() if n in _PAIRS and isinstance(value, Iterable)}
    return kind(**{**data, **pairs})


def _wrong(name: str, value: object, kind: str) -> str:
    """What is wrong with a fact whose field is declared as `kind`, or nothing."""
    if name == "compute_capability":
        good = isinstance(value, Sequence) and _are(value, int) and len(value) == 2
        return "" if good else "must be two whole numbers, such as [8, 9]"
    if name == "aliases":
        return "" if _are(value, str) else "must be a list of names"
    if name == "peak_flops":
        return _wrong_peaks(value)
    if name == "sources":
        return "" if isinstance(value, dict) and _are(value.values(), str) else "must be a table of texts"
    if name == "pcie_generation" and value not in PCIE_GENERATIONS:
        return f"must be one of {', '.join(map(str, PCIE_GENERATIONS))}"
    if kind in ("bool", "str"):
        words = "true or false" if kind == "bool" else "a text"
        return "" if isinstance(value, bool if kind == "bool" else str) else f"must be {words}"
    whole = kind == "int"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        return "must be a whole number" if whole else "must be a number"
    if not value > 0 and not (name == _MAY_BE_ZERO and value == 0):
        return "must be more than 0"
    return "" if value == 0 or _LEAST <= value <= _MOST else "is not a number that a GPU has"


def _wrong_peaks(value: object) -> str:
    if not isinstance(value, dict) or "fp32" not in value:
        return "must be a table with fp32 at least"
    if unknown := [key for key in value if key not in PRECISIONS]:
        return f"has {', '.join(unknown)}, which is none of {', '.join(PRECISIONS)}"
    numbers = all(isinstance(peak, int | float) and not isinstance(peak, bool) for peak in value.values())
    good = numbers and all(1 <= peak <= _MOST for peak in value.values())
    return "" if good else "must hold operations a second, more than 0"


def _are(values: object, kind: type) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, str) and all(type(v) is kind for v in values)
