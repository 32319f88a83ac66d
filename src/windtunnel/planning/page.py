"""The plan as one HTML page that needs no network: the recommendation, time against cost, and the table."""

from __future__ import annotations

from importlib import resources

from windtunnel.planning.result import Plan, named, number
from windtunnel.planning.rows import Row
from windtunnel.planning.table import cells
from windtunnel.reports.html import code
from windtunnel.reports.parts import figures, page
from windtunnel.reports.parts.figures import Figure
from windtunnel.trace.plain import Json
from windtunnel.version import __version__

require = page.require


def render(plan: Plan) -> str:
    """The page.

    Raises:
        UsageError: jinja2 is not installed.
    """
    require()
    templates = resources.files(__package__) / "templates"
    environment = page.environment()
    environment.filters["code"] = code
    titles, rows = cells(plan)
    words, drawn = plan.verdict.partition(": ")[2], figure(plan)
    return environment.from_string((templates / "plan.html.j2").read_text("utf-8")).render(
        plan=plan,
        verdict=words[:1].upper() + words[1:],
        titles=titles,
        rows=list(zip(plan.rows, rows, strict=True)),
        figure=drawn,
        version=__version__,
        style=page.stylesheet(),
        scripts=figures.scripts([drawn]) if drawn else "",
    )


def frontier(rows: list[Row]) -> list[Row]:
    """The rows that no other row beats in both time and cost, sorted by time."""
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
    """The points of cost against time, with their bands; None without prices.

    They are those of the whole run if every candidate does the same work in it, otherwise of a million units of work.
    """
    rows = [row for row in plan.rows if row.fits and row.work_cost and row.work_ns]
    same = plan.work.samples is not None or len({row.units_per_step for row in rows}) == 1
    whole = same and all(row.hours for row in rows)
    if not rows:
        return None
    best = set(map(id, frontier(rows)))
    points = []
    for row in rows:
        time = row.hours if whole else row.work_ns.times(1e6 * 1e-9) if row.work_ns else None
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
        "x": "hours of the whole run" if whole else f"seconds of a million {unit}s",
        "y": "cost of the whole run" if whole else f"cost of a million {unit}s",
    }


def figure(plan: Plan) -> Figure | None:
    """The chart of cost against time as a figure; None without prices."""
    data = chart(plan)
    if data is None:
        return None
    points = data["points"]
    traces = []
    for name, colour, shown in (
        ("other candidates", "reference", [point for point in points if not point["frontier"]]),
        ("no other is both faster and cheaper", "best", [point for point in points if point["frontier"]]),
    ):
        if not shown:
            continue
        xs, ys = ([point[axis][1] for point in shown] for axis in ("x", "y"))
        tips = [
            f"{point['name']}\n{data['x']}: {number(x)}\n{data['y']}: {number(y)}"
            for point, x, y in zip(shown, xs, ys, strict=True)
        ]
        spans = {f"span{axis.upper()}": [[point[axis][0], point[axis][2]] for point in shown] for axis in ("x", "y")}
        if colour == "best" and len(shown) > 1:
            traces.append({"kind": "line", "name": "", "colour": colour, "dash": "2 4", "x": xs, "y": ys})
        names = [point["name"] for point in shown]
        traces.append(
            {"kind": "points", "name": name, "colour": colour, "x": xs, "y": ys, "tips": tips, "labels": names, **spans}
        )
    axes = {f"{axis}axis": figures.axis(data[axis], [end for point in points for end in point[axis]], log=True)
            for axis in ("x", "y")}  # fmt: skip
    return Figure("Time against cost", spoken(data), {"traces": traces, "layout": {"height": 420, **axes}})


def spoken(data: Json) -> str:
    """The frontier in words, the fastest first."""
    best = [point for point in data["points"] if point["frontier"]]
    told = "; ".join(f"{point['name']}: {number(point['x'][1])}, {number(point['y'][1])}" for point in best)
    axes = f"{data['x']} against {data['y']}"
    return f"{axes[:1].upper()}{axes[1:]}. No other candidate is both faster and cheaper than {told}."
