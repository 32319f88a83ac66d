"""The plots as figures of plotly.js: plain data for the page; its script adds the colours of the reader's theme."""

from __future__ import annotations

import math

from understudy.experiments._result import Axis, Plot, Result, Timeline, Unit, words
from understudy.experiments._text import label
from understudy.trace.plain import Json

MOST_TICKS = 12
MODES = {"lines": "lines+markers", "marks": "markers"}


def figure(result: Result, plot: Plot | Timeline) -> Json:
    """One plot as {"title", "data", "layout"}; what is modelled is dashed."""
    return _timeline(plot) if isinstance(plot, Timeline) else _plot(result, plot)


def _plot(result: Result, plot: Plot) -> dict[str, object]:
    data = []
    for series in plot.series:
        texts = [words(y, plot.y.unit) for y in series.ys]
        one: Json = {"name": label(result, series), "x": list(series.xs), "y": list(series.ys), "text": texts}
        one["hovertemplate"] = f"%{{fullData.name}}<br>{plot.x.label} %{{x}}: %{{text}}<extra></extra>"
        if plot.kind == "bars":
            data.append({"type": "bar", "textposition": "none", **one})
        else:
            dash = "dash" if "modelled" in result.origin(series.of) else "solid"
            data.append({"type": "scatter", "mode": MODES[plot.kind], "line": {"dash": dash}, **one})
    layout = {"xaxis": _axis(plot.x, plot, "xs"), "yaxis": _axis(plot.y, plot, "ys"), "showlegend": len(data) > 1}
    if plot.kind == "bars":
        layout |= {"barmode": "group"}
    return {"title": plot.title, "data": data, "layout": layout}


def ticks(axis: Axis, low: float, high: float) -> tuple[list[float], list[str]]:
    """Where a logarithmic axis has its marks, and what they say: powers of ten, of two for bytes and counts."""
    base = 2 if axis.unit == "B" or (not axis.unit and high / low <= 200) else 10
    values = [value for power in range(-60, 61) if low / base < (value := float(base) ** power) < high * base]
    while len(values) > MOST_TICKS:
        values = values[::2]
    return values, [_mark(value, axis.unit) for value in values]


def _mark(value: float, unit: Unit) -> str:
    return words(int(value) if value.is_integer() and not unit else value, unit)


def _axis(axis: Axis, plot: Plot, which: str) -> dict[str, object]:
    numbers = [n for series in plot.series for n in getattr(series, which) if isinstance(n, int | float)]
    made: Json = {"title": {"text": axis.label}}
    positive = [number for number in numbers if number > 0]
    if axis.log and positive:
        values, texts = ticks(axis, min(positive), max(positive))
        return {**made, "type": "log", "tickvals": values, "ticktext": texts}
    if numbers and axis.unit:
        values, texts = even_ticks(max(numbers), axis.unit)
        return {**made, "tickvals": values, "ticktext": texts, "rangemode": "tozero"}
    return made


def even_ticks(high: float, unit: Unit) -> tuple[list[float], list[str]]:
    """Four to eleven marks from nothing to the largest number, a round number apart (in bytes, a power of two)."""
    rough = high / 10
    size = 2.0 ** math.ceil(math.log2(rough)) if unit == "B" else 10.0 ** math.floor(math.log10(rough))
    step = size if unit == "B" else next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    values = [step * number for number in range(int(high / step + 1e-9) + 1)]
    return values, [_mark(value, unit) for value in values]


def _timeline(plot: Timeline) -> Json:
    start = min(bar.begin_s for bar in plot.bars)
    values, texts = even_ticks(max(bar.end_s for bar in plot.bars) - start, "s")
    data = []
    for name in dict.fromkeys(bar.name for bar in plot.bars):
        bars = [bar for bar in plot.bars if bar.name == name]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": [bar.lane for bar in bars],
                "base": [bar.begin_s - start for bar in bars],
                "x": [bar.end_s - bar.begin_s for bar in bars],
                "text": [words(bar.end_s - bar.begin_s, "s") for bar in bars],
                "textposition": "none",
                "hovertemplate": "%{fullData.name}, %{text}<extra></extra>",
            }
        )
    layout = {
        "barmode": "overlay",
        "xaxis": {"tickvals": values, "ticktext": texts},
        "yaxis": {"categoryorder": "array", "categoryarray": list(reversed(plot.lanes))},
        "showlegend": True,
    }
    return {"title": plot.title, "data": data, "layout": layout}
