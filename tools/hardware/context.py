"""What an item may know, and what a comparison gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

Items = dict[str, Callable[[], Any]]
OVER = "the stage's time was over"
"""The error of an item that was cut off, of which nothing is known: the next run makes it anew."""


@dataclass(frozen=True)
class Context:
    """One side of a run: "native" or "emulated", on so many GPUs, emulated ones of `model`.

    `real` says whether this side has real GPUs. `artifacts` is where files that are too large for the result go.
    `short` asks for small sizes.
    """

    side: str
    real: bool
    model: str
    gpus: int
    artifacts: str
    short: bool = False

    def text(self) -> str:
        """As an argument of a command."""
        return json.dumps(asdict(self))


class Row(NamedTuple):
    """One line of the comparison; a figure that cannot be equal (a ratio of times) does not differ."""

    item: str
    native: str
    emulated: str
    differs: bool


def failed(value: Any) -> str:
    """Why an item has no value; "" where it has one."""
    return str(value["error"]) if isinstance(value, dict) and "error" in value else ""


def shown(value: Any, length: int = 44) -> str:
    """A value in a cell of the table."""
    text = failed(value) or (value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= length else text[: length - 3] + "..."


def both(native: dict[str, Any], emulated: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """The items that ran on both sides to their end."""
    cut = {*unfinished(native), *unfinished(emulated)}
    return [(name, value, emulated[name]) for name, value in native.items() if name in emulated and name not in cut]


def answered(native: dict[str, Any], emulated: dict[str, Any], found: list[Row]) -> Iterator[tuple[str, Any, Any]]:
    """Those of them that have a value on both sides; the others are rows of what was `found`."""
    for name, real, ours in both(native, emulated):
        if failed(real) or failed(ours):
            found.append(Row(name, shown(real), shown(ours), True))
        else:
            yield name, real, ours


def unfinished(side: dict[str, Any]) -> list[str]:
    """The items of a side that were cut off."""
    return [name for name, value in side.items() if failed(value) == OVER]
