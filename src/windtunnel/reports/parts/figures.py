"""Figures of a page as plain data for `charts.js`: traces over axes, or bars beside names, and what they say in words.

Colours are names: what they stand for is the same on every page (`TINTS` in that script).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from windtunnel.reports.parts import page
from windtunnel.trace.plain import Json

ORDER = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
"""Colours for series without a meaning of their own, in order."""
DASHED = "5 4"
MOST_TICKS = 12
HEIGHT = 360
POWER_OF_TWO_SPAN = 200
"""Counts over no more than this ratio are marked at powers of two."""
Words = Callable[[float], str]
Ticks = list[tuple[float, str]]


@dataclass(frozen=True)
class Figure:
    """One figure: `spoken` is what it shows in words, `data` what `charts.js` draws."""

    title: str
    spoken: str
    data: Json


def log_ticks(low: float, high: float, words: Words, base: int = 10) -> Ticks:
    """Where a logarithmic axis has its marks and what they say: powers of ten, or of two."""
    values = [value for power in range(-60, 61) if low / base < (value := float(base) ** power) < high * base]
    while len(values) > MOST_TICKS:
        values = values[::2]
    return [(value, words(value)) for value in values]


def even_ticks(high: float, words: Words, base: int = 10) -> Ticks:
    """Four to eleven marks from nothing to the largest number, a round number (or a power of two) apart."""
    rough = high / 10
    if base == 2:
        step = 2.0 ** math.ceil(math.log2(rough))
    else:
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * (1 - 1e-9))
    return [(step * number, words(step * number)) for number in range(int(high / step + 1e-9) + 1)]


def axis(title: str, numbers: Sequence[float], *, log: bool = False, ticks: Ticks | None = None) -> Json:
    """An axis that holds these numbers, from nothing upwards where it is not logarithmic."""
    positive = [number for number in numbers if number > 0] or [1.0]
    made: Json = {"title": title, "ticks": ticks} if ticks else {"title": title}
    if log:
        low, high = min(positive), max(positive)
        slack = max((high / low) ** 0.05, 1.1)
        return {**made, "type": "log", "range": [low / slack, high * slack]}
    return {**made, "range": [0, 1.05 * max(positive)]}


def render(title: str, figures: Sequence[Figure], notes: Sequence[str] = ()) -> str:
    """A page of figures alone.

    Raises:
        UsageError: jinja2 is not installed.
    """
    page.require()
    return (
        page.environment()
        .from_string(page.template("figures.html.j2"))
        .render(title=title, figures=figures, notes=notes, style=page.stylesheet(), scripts=scripts(figures))
    )


def scripts(figures: Sequence[Figure]) -> str:
    """The elements at the end of a page that draw its figures, each into the element with its number."""
    data = page.embedded([figure.data for figure in figures])
    return (
        f'<script type="application/json" id="data">{data}</script>\n'
        f"<script>{page.template('charts.js')}</script>\n<script>{page.template('figures.js')}</script>"
    )
