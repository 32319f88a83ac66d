"""Facts of the allocators, events, streams and their order: the programs of `facts.toml`, each run on both sides."""

from __future__ import annotations

import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from tools.hardware.context import Context, Items, Row, both, failed, shown

ORDER = 30
TITLE = "Allocators, events, streams"
LIMIT_S = 420
ITEM_S = 45
OPTIONS: tuple[str, ...] = ()
TABLE = Path(__file__).parents[1] / "facts.toml"


def table() -> list[dict[str, Any]]:
    """The facts: name, program, and how its value is compared."""
    return list(tomllib.loads(TABLE.read_text("utf-8"))["fact"])


def items(context: Context) -> Items:
    """A fact a program, which leaves its answer in `value`; those that need more GPUs than there are are left out."""
    return {
        fact["name"]: partial(run, fact["program"])
        for fact in table()
        if fact.get("gpus", 1) <= context.gpus and not (context.short and fact.get("slow"))
    }


def run(program: str) -> Any:
    """What a fact's program leaves in `value`."""
    import torch

    names: dict[str, Any] = {"__name__": "__main__", "torch": torch, "MIB": 1 << 20}
    exec(compile(program, "fact", "exec"), names)
    return names["value"]


def rows(native: dict[str, Any], emulated: dict[str, Any]) -> list[Row]:
    """Values that differ; those with `compare = "ratio"` are figures, and so are shown always."""
    how = {fact["name"]: fact.get("compare", "equal") for fact in table()}
    found = []
    for name, real, ours in both(native, emulated):
        if how.get(name) == "ratio" and not failed(real) and not failed(ours):
            found.append(Row(name, shown(real), f"{shown(ours)} ({ratio(real, ours)})", False))
        elif real != ours:
            found.append(Row(name, shown(real), shown(ours), True))
    return found


def ratio(real: float, ours: float) -> str:
    """How many times the native value the emulated one is."""
    return f"{ours / real:.2f}x" if real else "-"
