"""The plots as figures of a page: a colour a group, dashes for the CPU, words with units on every axis."""

from __future__ import annotations

from windtunnel.experiments._result import Axis, Plot, Result, Series, Timeline, Unit, words
from windtunnel.experiments._text import label, spoken
from windtunnel.reports.parts import figures
from windtunnel.reports.parts.figures import DASHED, HEIGHT, ORDER, Figure, Ticks
from windtunnel.trace.plain import Json

TINTS = {
    "float64": "fp64", "float32": "fp32", "tf32": "tf32", "float16": "fp16", "bfloat16": "bf16",
    "copy": "copy", "product": "kernel", "kernel": "kernel", "compute": "kernel", "wait": "wait",
    "CPU": "cpu", "GPU": "gpu",
}  # fmt: skip
"""Groups and operations whose colour is the same in every report."""
REFERENCE = "reference"


def figure(result: Result, plot: Plot | Timeline) -> Figure:
    """One plot, with what it says in words."""
    if isinstance(plot, Timeline):
        data = _timeline(plot)
    else:
        data = _bars(result, plot) if plot.kind == "bars" else _lines(result, plot)
    return Figure(plot.title, spoken(result, plot), data)


def tints(names: list[str]) -> dict[str, str]:
    """A colour for each name: its own, or the next that none has."""
    own = {name: TINTS[name] for name in names if name in TINTS}
    others = iter(ORDER * (1 + len(names) // len(ORDER)))
    return {name: own.get(name) or next(others) for name in dict.fromkeys(names)}


def group(series: Series) -> str:
    """What has one colour: the series' group, or the series itself."""
    return series.group or series.name


def _lines(result: Result, plot: Plot) -> Json:
    drawn = [series for series in plot.series if series.of or not any(other.of for other in plot.series)]
    colours = tints([group(series) for series in drawn])
    several = {origin for series in drawn for origin in series.of} == {"cpu", "gpu"}
    traces = []
    for series in plot.series:
        reference = series not in drawn
        name = label(result, series)
        texts = ["" if y is None else f"{name}\n{plot.x.label} {_mark(x, plot.x.unit)}: {words(y, plot.y.unit)}"
                 for x, y in zip(series.xs, series.ys, strict=True)]  # fmt: skip
        traces.append(
            {
                "kind": "points" if plot.kind == "marks" else "line",
                "name": name,
                "colour": REFERENCE if reference else colours[group(series)],
                "dash": "2 3" if reference else DASHED if series.dashed or (several and series.of == ("cpu",)) else "",
                "marks": not reference,
                "x": list(series.xs),
                "y": list(series.ys),
                "tips": texts,
            }
        )
    layout = {"height": HEIGHT, "xaxis": _axis(plot.x, plot, "xs"), "yaxis": _axis(plot.y, plot, "ys")}
    return {"traces": traces, "layout": layout}


def _bars(result: Result, plot: Plot) -> Json:
    names = list(dict.fromkeys(str(x) for series in plot.series for x in series.xs))
    colours = tints([group(series) for series in plot.series])
    traces = []
    for series in plot.series:
        values = dict(zip(map(str, series.xs), series.ys, strict=True))
        texts = [words(values.get(name), plot.y.unit) for name in names]
        traces.append(
            {
                "kind": "named",
                "name": label(result, series),
                "colour": colours[group(series)],
                "values": [values.get(name) for name in names],
                "texts": texts,
                "tips": [f"{name}\n{label(result, series)}: {text}" for name, text in zip(names, texts, strict=True)],
            }
        )
    axis = _axis(plot.y, plot, "ys")
    if plot.y.log:  # the smallest has a bar as well
        axis["range"][0] /= 2
    return {"traces": traces, "layout": {"names": names, "xaxis": axis}}


def ticks(axis: Axis, low: float, high: float) -> Ticks:
    """Where a logarithmic axis has its marks: at powers of ten, of two for bytes and counts."""
    two = axis.unit == "B" or (not axis.unit and high / low <= figures.POWER_OF_TWO_SPAN)
    return figures.log_ticks(low, high, lambda value: _mark(value, axis.unit), 2 if two else 10)


def even_ticks(high: float, unit: Unit) -> Ticks:
    """Marks from nothing to the largest number."""
    return figures.even_ticks(high, lambda value: _mark(value, unit), 2 if unit == "B" else 10)


def _mark(value: float | str, unit: Unit) -> str:
    return words(int(value) if isinstance(value, float) and value.is_integer() and not unit else value, unit)


def _axis(axis: Axis, plot: Plot, which: str) -> Json:
    numbers = [n for series in plot.series for n in getattr(series, which) if isinstance(n, int | float)]
    positive = [number for number in numbers if number > 0]
    marks = None
    if positive and axis.log:
        marks = ticks(axis, min(positive), max(positive))
    elif positive and axis.unit:
        marks = even_ticks(max(positive), axis.unit)
    made = figures.axis(axis.label, numbers, log=axis.log and bool(positive), ticks=marks)
    if which == "xs" and not axis.log and numbers and min(numbers) > 0:
        room = 0.03 * (max(numbers) - min(numbers))
        made["range"] = [min(numbers) - room, max(numbers) + room]
    return made


def _timeline(plot: Timeline) -> Json:
    start = min(bar.begin_s for bar in plot.bars)
    length = max(bar.end_s for bar in plot.bars) - start
    colours = tints([bar.name for bar in plot.bars])
    traces = []
    for name, colour in colours.items():
        bars = [bar for bar in plot.bars if bar.name == name]
        traces.append(
            {
                "kind": "bar",
                "name": name,
                "colour": colour,
                "y": [bar.lane for bar in bars],
                "base": [bar.begin_s - start for bar in bars],
                "x": [bar.end_s - bar.begin_s for bar in bars],
                "tips": [f"{name}, {words(bar.end_s - bar.begin_s, 's')}" for bar in bars],
            }
        )
    axis = figures.axis("time since the first operation", [length], ticks=even_ticks(length, "s"))
    lanes = list(plot.lanes)
    yaxis = {"range": [0, 1], "lanes": lanes}
    return {"traces": traces, "layout": {"height": 80 + 40 * len(lanes), "xaxis": axis, "yaxis": yaxis}}
