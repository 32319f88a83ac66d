"""The plan as one HTML page that needs no network: the recommendation, time against cost, and the table."""

from __future__ import annotations

from importlib import resources

from understudy.planning.result import Plan, named
from understudy.planning.rows import Row
from understudy.planning.table import cells
from understudy.reports.html import code
from understudy.reports.parts import page
from understudy.trace.plain import Json
from understudy.version import __version__

require = page.require


def render(plan: Plan) -> str:
    """The page.

    Raises:
        UsageError: jinja2 or plotly is not installed.
    """
    require()
    templates = resources.files(__package__) / "templates"
    environment = page.environment()
    environment.filters["code"] = code
    titles, rows = cells(plan)
    words = plan.verdict.partition(": ")[2]
    return environment.from_string((templates / "plan.html.j2").read_text("utf-8")).render(
        plan=plan,
        verdict=words[:1].upper() + words[1:],
        titles=titles,
        rows=list(zip(plan.rows, rows, strict=True)),
        chart=chart(plan),
        version=__version__,
        style=page.stylesheet(),
        plotly=page.plotly(),
        script=(templates / "plan.js").read_text("utf-8"),
        data_json=page.embedded(chart(plan)),
    )


def frontier(rows: list[Row]) -> list[Row]:
    """The rows that no other is both faster and cheaper than, by time."""
    known = sorted(
        (row for row in rows if row.fits and row.work_ns and row.work_cost),
        key=lambda row: (row.work_ns.value, row.work_cost.value) if row.work_ns and row.work_cost else (0.0, 0.0),
    )
    kept: list[Row] = []
    for row in known:
        if not kept or _cost(row) < _cost(kept[-1]):
            kept.append(row)
    return kept


def _cost(row: Row) -> float:
    return row.work_cost.value if row.work_cost else float("inf")


def chart(plan: Plan) -> Json | None:
    """The points of time against cost with their bands, in hours where the work is known; None without prices."""
    whole = all(row.hours for row in plan.rows if row.fits)
    rows = [row for row in plan.rows if row.fits and row.work_cost and row.work_ns]
    if not rows:
        return None
    best = set(map(id, frontier(rows)))
    points = []
    for row in rows:
        time = row.hours if whole else row.work_ns.times(1e-9) if row.work_ns else None
        cost = row.cost if whole else row.work_cost.times(1e6) if row.work_cost else None
        if time is None or cost is None:
            continue
        points.append(
            {
                "name": named(row),
                "x": [time.low, time.value, time.high],
                "y": [cost.low, cost.value, cost.high],
                "frontier": id(row) in best,
            }
        )
    unit = rows[0].unit
    return {
        "points": sorted(points, key=lambda point: point["x"][1]),
        "x": "hours of the whole run" if whole else f"seconds of one {unit}",
        "y": "cost of the whole run" if whole else f"cost of a million {unit}s",
    }
