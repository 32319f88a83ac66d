"""What differs, and which differences are right: the table `expected.toml`."""

from __future__ import annotations

import fnmatch
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Found:
    """A difference of one case: operator, type, variant, sample, axis."""

    operator: str
    dtype: str
    variant: str
    index: int
    axis: str
    kind: str
    detail: str

    @classmethod
    def death(cls, call: str, how: str) -> Found:
        """A call in which the process ended: `operator|type|variant`."""
        operator, dtype, variant = call.split("|")
        return cls(operator, dtype, variant, 0, "cuda:0", "crash", how)


@dataclass(frozen=True)
class Expected:
    """A difference that is right, or that a document explains: patterns, and the reason."""

    operators: tuple[str, ...]
    reason: str
    kinds: tuple[str, ...] = ("*",)
    variants: tuple[str, ...] = ("*",)
    dtypes: tuple[str, ...] = ("*",)
    axes: tuple[str, ...] = ("*",)
    details: tuple[str, ...] = ("*",)

    def covers(self, found: Found) -> bool:
        """Whether it speaks of this difference."""
        pairs = (
            (found.operator, self.operators),
            (found.kind, self.kinds),
            (found.variant, self.variants),
            (found.dtype, self.dtypes),
            (found.axis, self.axes),
            (found.detail, self.details),
        )
        return all(any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) for name, patterns in pairs)


@cache
def expected() -> list[Expected]:
    """The table `expected.toml`."""
    rows = tomllib.loads((Path(__file__).parent / "expected.toml").read_text())["expected"]
    found = []
    for row in rows:
        fields: dict[str, Any] = {key: value if key == "reason" else tuple(value) for key, value in row.items()}
        found.append(Expected(**fields))
    return found


def unexpected(found: Iterable[Found]) -> list[Found]:
    """The differences of which the table says nothing."""
    return [one for one in found if not any(row.covers(one) for row in expected())]


def reasons(found: Iterable[Found]) -> Counter[str]:
    """How many differences have each of the table's reasons."""
    return Counter(next((row.reason for row in expected() if row.covers(one)), "unexpected") for one in found)
