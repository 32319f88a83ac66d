"""The plan's table: titles and cells for all formats, and the text formats: terminal, Markdown, JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

from rich.table import Table
from rich.text import Text

from windtunnel.planning import demand
from windtunnel.planning.result import Plan, choice_words, fit_words, money, number, share_words
from windtunnel.planning.rows import Row, Span
from windtunnel.reports.md import plain
from windtunnel.reports.text import console_for
from windtunnel.trace.units import format_bytes, format_ns, format_share

Cell = Callable[[Row], str]


def _peak(row: Row) -> str:
    if row.peak_bytes is None:
        return ""
    return format_bytes(row.peak_bytes) + (f" ±{format_share(row.peak_band)}" if row.peak_band else "")


def _headroom(row: Row) -> str:
    return "" if row.headroom_bytes is None or not row.fits else format_bytes(row.headroom_bytes)


def _spread(span: Span | None, words: Callable[[float], str]) -> str:
    """A number and the half-width of its band: "440 ms ±33 %"."""
    if span is None:
        return ""
    return f"{words(span.value)} ±{format_share((span.high - span.value) / span.value)}" if span.value else words(0.0)


def _rate(row: Row) -> str:
    span, unit = (row.tokens_per_s, "tokens") if row.tokens_per_s else (row.samples_per_s, "samples")
    return "" if span is None else f"{number(span.value)} {unit}/s"


def _unit_cost(row: Row) -> str:
    """The cost of a million units if the run's length was not given: "1.23 tokens", in the unit of the prices."""
    return "" if row.work_cost is None or row.cost is not None else f"{number(row.work_cost.value * 1e6)}, {row.unit}s"


COLUMNS: tuple[tuple[str, Cell], ...] = (
    ("GPUs", lambda row: row.gpus),
    ("with", choice_words),
    ("fits", fit_words),
    ("peak", _peak),
    ("headroom", _headroom),
    ("step", lambda row: _spread(row.step_ns, format_ns)),
    ("throughput", _rate),
    ("MFU", lambda row: share_words(row.mfu)),
    ("limited by", lambda row: row.limit),
    ("hours", lambda row: number(row.hours.value) if row.hours else ""),
    ("cost", lambda row: money(row.cost.value) if row.cost else ""),
    ("cost of a million", _unit_cost),
    ("how", lambda row: row.how),
)
"""The title of each column and what it says of a row; a column that says nothing of any row is left out."""


def cells(plan: Plan) -> tuple[list[str], list[list[str]]]:
    """The titles of columns that are not empty, and a list of cells per row."""
    used = [(title, cell) for title, cell in COLUMNS if any(cell(row) for row in plan.rows)]
    return [title for title, _ in used], [[cell(row) for _, cell in used] for row in plan.rows]


def render_json(plan: Plan) -> str:
    """The plan as JSON, described in docs/plan.md."""
    return json.dumps(plan.to_json(), indent=1, ensure_ascii=False) + "\n"


def render_markdown(plan: Plan) -> str:
    """The plan as GitHub Markdown, for a pull request."""
    titles, rows = cells(plan)
    lines = [f"**{plain(plan.verdict)}**", "", f"- why: {plain(plan.why)}", f"- next: `{plan.next}`", ""]
    lines += ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    lines += ["| " + " | ".join(plain(cell) for cell in row) + " |" for row in rows]
    lines += ["", *(f"- {plain(note)}" for note in [*plan.reasons, *plan.suggestions, *plan.notes]), ""]
    return "\n".join(lines)


NARROWEST = 20
"""The least width of the column of what varies: narrower, options would be folded into syllables."""
DISPENSABLE = ("how", "headroom", "limited by", "MFU", "hours", "throughput", "peak")
"""Columns that a narrow terminal leaves out, in this order; every other format has them all."""
GAP = 2  # between columns
STYLES = {demand.FITS: "", demand.TIGHT: "yellow", demand.FAILED: "red"}


def render_text(plan: Plan, *, width: int = 100, color: bool = False) -> str:
    """The plan for a terminal `width` columns wide: verdict, why, next, the table, and notes on it."""
    out = io.StringIO()
    console = console_for(out, max(width, 40), color)
    for label, words in (("verdict", plan.verdict), ("why", plan.why), ("next", plan.next)):
        console.print(Text(f"{label:8}", style="bold") + Text(words), soft_wrap=True)
    console.print()
    titles, rows = cells(plan)
    widths = {title: max(len(title), *map(len, texts)) for title, *texts in zip(titles, *rows, strict=True)}
    if "with" in widths:
        widths["with"] = min(widths["with"], NARROWEST)
    left_out = _left_out(widths, console.width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold", expand=False)
    for title in titles:
        if title not in left_out:
            wraps, least = title not in ("GPUs", "step"), widths[title] if title == "with" else None
            table.add_column(title, overflow="fold", no_wrap=not wraps, min_width=least)
    for row, texts in zip(plan.rows, rows, strict=True):
        shown = (text for title, text in zip(titles, texts, strict=True) if title not in left_out)
        table.add_row(*map(Text, shown), style=STYLES.get(row.status, "dim"))
    console.print(table)
    if left_out:
        words = f"a wider terminal shows {', '.join(left_out)}; so does `--report plan.html`"
        console.print(Text(words, style="dim"), soft_wrap=True)
    console.print()
    for text in plan.reasons:
        console.print(Text(text), soft_wrap=True)
    for text in plan.suggestions:
        console.print(Text(f"suggestion: {text}"), soft_wrap=True)
    for note in plan.notes:
        console.print(Text(note, style="dim"), soft_wrap=True)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _left_out(widths: dict[str, int], room: int) -> list[str]:
    """The columns to leave out so that the others fit into `room`."""
    found: list[str] = []
    needed = sum(widths.values()) + GAP * (len(widths) - 1)
    for title in DISPENSABLE:
        if needed > room and title in widths:
            found.append(title)
            needed -= widths[title] + GAP
    return found
