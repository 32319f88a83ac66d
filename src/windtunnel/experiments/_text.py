"""A result as text: for a terminal, and as Markdown for the documentation."""

from __future__ import annotations

import io
import textwrap

from rich.console import JustifyMethod
from rich.table import Table as Grid
from rich.text import Text

from windtunnel.experiments._result import Column, Plot, Result, Series, Table, Timeline, words
from windtunnel.reports.text import console_for


def heading(result: Result, column: Column) -> tuple[str, str]:
    """A column's name, and how its numbers came about."""
    return column.name, result.origin(column.of)


def label(result: Result, series: Series) -> str:
    """A series' name in a legend, with how its numbers came about."""
    origin = result.origin(series.of)
    return f"{series.name} ({origin})" if origin else series.name


def cells(table: Table) -> list[list[str]]:
    """The rows of a table as people read them."""
    return [[words(value, column.unit) for value, column in zip(row, table.columns, strict=True)] for row in table.rows]


def is_number(table: Table, index: int) -> bool:
    """Whether a column holds numbers, which stand at the right."""
    return all(not isinstance(row[index], str) for row in table.rows)


def render(result: Result, title: str, *, width: int = 100, color: bool = False) -> str:
    """The whole result for a terminal: the conclusion first, then its tables and where the numbers come from."""
    out = io.StringIO()
    console = console_for(out, max(width, 40), color)
    console.print(Text(title, style="bold"))
    for sentence in result.conclusion:
        console.print(Text(sentence))
    if result.emulated:
        console.print(Text("EMULATED", style="bold yellow"))
    for sentence in (*result.provenance(), *result.notes):
        console.print(Text(sentence, style="dim"))
    for table in result.tables:
        console.print()
        console.print(Text(table.title, style="bold"))
        console.print(_grid(result, table.told(), console.width))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _grid(result: Result, table: Table, width: int) -> Grid:
    """A table whose numbers stay in one line each: headings take more lines, and columns stand closer, to make room."""
    rows = cells(table)
    titles = []
    for index, column in enumerate(table.columns):
        longest = max((len(row[index]) for row in rows), default=1)
        words = [part for part in heading(result, column) if part]
        least = max(longest, *(len(word) for part in words for word in part.split()))
        titles.append([line for part in words for line in textwrap.wrap(part, least)])
    widest = [
        max([len(line) for line in title] + [len(row[index]) for row in rows]) for index, title in enumerate(titles)
    ]
    gap = 2 if sum(widest) + 2 * len(widest) <= width else 1
    fits = sum(widest) + gap * len(widest) <= width
    grid = Grid(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim", expand=False)
    for index, title in enumerate(titles):
        side: JustifyMethod = "right" if is_number(table, index) else "left"
        grid.add_column("\n".join(title), justify=side, overflow="fold", no_wrap=fits)
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    return grid


def markdown_table(result: Result, table: Table) -> str:
    """A table in Markdown, its origins in the second line of each heading."""
    table = table.told()
    heads = ["<br>".join(part for part in heading(result, column) if part) for column in table.columns]
    rules = ["--:" if is_number(table, index) else ":--" for index in range(len(table.columns))]
    lines = [heads, rules, *cells(table)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


def spoken(result: Result, plot: Plot | Timeline) -> str:
    """A plot in words, for those who do not see it: what is drawn, from where to where."""
    if isinstance(plot, Timeline):
        parts = []
        for lane in plot.lanes:
            busy = sum(bar.end_s - bar.begin_s for bar in plot.bars if bar.lane == lane)
            count = sum(bar.lane == lane for bar in plot.bars)
            parts.append(f"{lane}: {count} operations, {words(busy, 's')}")
        length = max(bar.end_s for bar in plot.bars) - min(bar.begin_s for bar in plot.bars)
        return f"{plot.title}, {words(length, 's')} in all. {'; '.join(parts)}."
    parts = [_ends(result, plot, series) for series in plot.series]
    return f"{plot.title}: {plot.y.label} over {plot.x.label}. {'; '.join(parts)}."


def _ends(result: Result, plot: Plot, series: Series) -> str:
    points = [(x, y) for x, y in zip(series.xs, series.ys, strict=True) if y is not None]
    if not points:
        return f"{label(result, series)}: no points"
    shown = points if plot.kind == "bars" or len(points) < 3 else [points[0], points[-1]]
    told = ", ".join(f"{words(y, plot.y.unit)} at {_place(x, plot)}" for x, y in shown)
    return f"{label(result, series)}: {told}"


def _place(x: float | str, plot: Plot) -> str:
    return words(int(x) if isinstance(x, float) and x.is_integer() and not plot.x.unit else x, plot.x.unit)
