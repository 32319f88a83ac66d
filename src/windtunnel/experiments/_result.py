"""What an experiment gives back, as plain data: tables, plots, facts and two sentences that follow from the facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, NamedTuple

from windtunnel.trace.plain import Json
from windtunnel.trace.units import format_bytes, format_ns, format_share

Unit = Literal["", "s", "B", "B/s", "FLOP/s", "share", "times"]
Value = float | int | str | None
Origin = Literal["cpu", "gpu"]

SCHEMA_VERSION = 1
NOTHING = "-"
RATES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def words(value: Value, unit: Unit = "") -> str:
    """A value as people read it, with three significant digits: "1.24 ms", "13.9 TFLOP/s", "8.12 times"; "-" for None.

    Seconds, bytes (in binary units), bytes and operations a second (in decimal ones), shares of one, and ratios.
    """
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return value
    if unit == "s":
        return format_ns(value * 1e9)
    if unit == "B":
        return format_bytes(value)
    if unit == "share":
        return format_share(value)
    if unit == "times":
        return f"{_significant(value)} times"
    if unit:
        size, prefix = next(((size, prefix) for size, prefix in RATES if abs(value) >= size), RATES[-1])
        return f"{_significant(value / size)} {prefix}{unit}"
    return f"{value:,}" if isinstance(value, int) else _significant(value)


def _significant(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3g}"


class Fact(NamedTuple):
    """A number that the conclusion may state; in a text it shows as `words`."""

    value: Value
    unit: Unit = ""

    def __str__(self) -> str:
        return words(self.value, self.unit)

    def __format__(self, specification: str) -> str:
        return str(self)


@dataclass(frozen=True)
class Column:
    """A column of a table. `of` says where its numbers were taken: nowhere for what was chosen or counted."""

    name: str
    unit: Unit = ""
    of: tuple[Origin, ...] = ()


@dataclass(frozen=True)
class Table:
    """Rows as long as `columns`; None is what was not measured."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]

    def told(self) -> Table:
        """The table without the columns that nothing was measured for, as of a GPU that is not there."""
        kept = [index for index in range(len(self.columns)) if any(row[index] is not None for row in self.rows)]
        rows = tuple(tuple(row[index] for index in kept) for row in self.rows)
        return Table(self.title, tuple(self.columns[index] for index in kept), rows)

    def column(self, name: str) -> list[Value]:
        """The values of the column of that name."""
        index = [column.name for column in self.columns].index(name)
        return [row[index] for row in self.rows]


@dataclass(frozen=True)
class Axis:
    """An axis of a plot; its numbers are in `unit`."""

    label: str
    unit: Unit = ""
    log: bool = False


@dataclass(frozen=True)
class Series:
    """One line of a plot. A y of None is a gap. Lines of one `group` (a type of numbers) have one colour.

    What tells them apart is whether they are `dashed`; where there are both, those of the CPU are.
    """

    name: str
    xs: tuple[float | str, ...]
    ys: tuple[float | None, ...]
    of: tuple[Origin, ...] = ()
    group: str = ""
    dashed: bool = False


@dataclass(frozen=True)
class Plot:
    """Series over one pair of axes: lines with marks, marks alone, or bars over names."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    kind: Literal["lines", "marks", "bars"] = "lines"


@dataclass(frozen=True)
class Bar:
    """A stretch of time in a lane, in seconds."""

    lane: str
    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """Who was busy with what, and when: lanes from top to bottom in the order of their first bars."""

    title: str
    bars: tuple[Bar, ...]
    of: tuple[Origin, ...] = ("gpu",)

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes from top to bottom."""
        return tuple(dict.fromkeys(bar.lane for bar in self.bars))


@dataclass(frozen=True)
class Result:
    """What one run of an experiment found.

    `devices` names what "cpu" and "gpu" were; `sources` says for each "measured" or "modelled, ±N %" and is set by who
    runs the experiment, since the experiment itself cannot know. Each number in `conclusion` is one of `facts`.
    """

    name: str
    devices: Mapping[Origin, str]
    tables: tuple[Table, ...]
    plots: tuple[Plot | Timeline, ...]
    facts: Mapping[str, Fact]
    conclusion: tuple[str, ...]
    notes: tuple[str, ...] = ()
    sources: Mapping[Origin, str] = field(default_factory=dict)
    command: str = ""

    @property
    def emulated(self) -> bool:
        """Whether some of the numbers are of GPUs that are not there."""
        return any(self.sources.get(origin, "").startswith("modelled") for origin in self.used())

    def origin(self, of: tuple[Origin, ...]) -> str:
        """How the numbers of a column or series came about: "measured", "modelled", or "" for what was chosen."""
        kinds = [self.sources.get(one, "").partition(",")[0] for one in of]
        return " / ".join(dict.fromkeys(kind for kind in kinds if kind))

    def used(self) -> tuple[Origin, ...]:
        """The devices that some number is of."""
        columns = [column for table in self.tables for column in table.columns]
        drawn = [one for plot in self.plots for one in ([plot] if isinstance(plot, Timeline) else plot.series)]
        return tuple(origin for origin in self.devices if any(origin in one.of for one in [*columns, *drawn]))

    def provenance(self) -> tuple[str, ...]:
        """One sentence for each device that some number is of: what it is, and where its numbers come from."""
        return tuple(f"{origin.upper()}: {self.devices[origin]}, {self.sources[origin]}." for origin in self.used())

    def as_dict(self) -> Json:
        """Plain dicts and lists, for JSON. Numbers are in the units of their columns, unrounded."""
        found = asdict(self)
        found["facts"] = {name: fact._asdict() for name, fact in self.facts.items()}
        for plot, drawn in zip(found["plots"], self.plots, strict=True):
            plot["kind"] = "timeline" if isinstance(drawn, Timeline) else plot["kind"]
        return {"schema_version": SCHEMA_VERSION, "emulated": self.emulated, **found}
