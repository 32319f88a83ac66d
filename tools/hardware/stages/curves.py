"""What `windtunnel calibrate` measures: efficiency of kernels by size, the host's times, copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools.hardware.context import Context, Items, Row, answered, shown
from tools.hardware.stages.facts import ratio

ORDER = 60
TITLE = "The curves of `windtunnel calibrate`"
LIMIT_S = 420
ITEM_S = 400
OPTIONS = ("--no-data", "--assume", "1")


def items(context: Context) -> Items:
    """The whole measurement."""
    return {"curves": lambda: measured(context)}


def measured(context: Context) -> dict[str, Any]:
    """The tables of its file; the file itself goes to the artifacts, for `--curves`."""
    from windtunnel.cli.calibrate import text
    from windtunnel.measure import curves

    gpu = curves.this_gpu()
    if context.short:
        curves.ROOFLINE_US = (30.0,)  # type: ignore[assignment]
    found = curves.measure(gpu, how="measured" if context.real else "EMULATED")
    folder = Path(context.artifacts)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"curves.{context.side}.toml").write_text(text(found), encoding="utf-8")
    return found


def rows(native: dict[str, Any], emulated: dict[str, Any]) -> list[Row]:
    """Ratios of efficiencies, of the host's times and of the links' rates."""
    found: list[Row] = []
    for _, real, ours in answered(native, emulated, found):
        known = {(row["class"], row["precision"]): row["efficiency"] for row in ours["curve"]}
        for row in real["curve"]:
            pairs = list(zip(row["efficiency"], known.get((row["class"], row["precision"]), ()), strict=False))
            texts = " ".join(ratio(one, other) for one, other in pairs)
            found.append(Row(f"{row['class']} {row['precision']}", shown(row["efficiency"]), texts, False))
        for name in ("dispatch_us", "driver", "links"):
            for key, value in real[name].items():
                found.append(Row(f"{name}, {key}", shown(value), ratio(value, ours[name].get(key, 0)), False))
    return found
