"""The same training steps timed: natively by CUDA events, emulated by the model."""

from __future__ import annotations

from typing import Any

from tools.hardware import models
from tools.hardware.context import Context, Items, Row, answered
from tools.hardware.stages.facts import ratio

ORDER = 50
TITLE = "Time of the training steps"
LIMIT_S = 240
ITEM_S = 120
OPTIONS = ("--no-data", "--assume", "1")
WARM_UP = 5


def items(context: Context) -> Items:
    """A model each."""
    return {name: lambda name=name: timed(name, context.short) for name in models.NAMES}


def timed(name: str, short: bool) -> dict[str, float]:
    """Milliseconds of `models.STEPS` steps: the medians of several measurements, on the device and on the host."""
    step = models.make(name, short)
    for _ in range(WARM_UP):
        step()
    device_ms, host_ms = models.times_ms(step)
    return {"device_ms": round(device_ms, 4), "host_ms": round(host_ms, 4)}


def rows(native: dict[str, Any], emulated: dict[str, Any]) -> list[Row]:
    """Ratios of the times."""
    found: list[Row] = []
    for name, real, ours in answered(native, emulated, found):
        for key in ("device_ms", "host_ms"):
            found.append(Row(f"{name}, {key}", f"{real[key]}", f"{ours[key]} ({ratio(real[key], ours[key])})", False))
    return found
