"""Single kernels by family and shape, as the clock needs them to be fitted: measured beside modelled."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from tools.hardware import kernels
from tools.hardware.context import Context, Items, Row, answered
from tools.hardware.stages.facts import ratio

ORDER = 55
TITLE = "Kernels by family and shape"
LIMIT_S = 400
ITEM_S = 120
OPTIONS = ("--no-data", "--assume", "1")


def items(context: Context) -> Items:
    """A family each."""
    return {name: lambda table=table: times(table, context) for name, table in kernels.families().items()}


def times(table: Callable[[bool], kernels.Calls], context: Context) -> dict[str, float]:
    """Microseconds of each shape between CUDA events; emulated, the model's own."""
    import torch

    from windtunnel.measure import curves

    torch.manual_seed(0)
    return {shape: round(curves.kernel_us(call), 3) for shape, call in table(context.short)}


def rows(native: dict[str, Any], emulated: dict[str, Any]) -> list[Row]:
    """Both times of each shape, and of each family the median of their ratios' distances from 1."""
    found: list[Row] = []
    for family, real, ours in answered(native, emulated, found):
        shapes = [shape for shape in real if shape in ours]
        for shape in shapes:
            words = f"{ours[shape]} us ({ratio(real[shape], ours[shape])})"
            found.append(Row(f"{family}, {shape}", f"{real[shape]} us", words, False))
        errors = [abs(ours[shape] / real[shape] - 1.0) for shape in shapes if real[shape]]
        if errors:
            found.append(Row(f"{family}, median error of {len(errors)}", "", f"{median(errors):.1%}", False))
    return found
