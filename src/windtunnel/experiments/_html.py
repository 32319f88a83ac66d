"""A result as one HTML page that needs no network: conclusion, plots with their words, tables, what it is about."""

from __future__ import annotations

from importlib import resources

from windtunnel.experiments import _charts, _text
from windtunnel.experiments._result import Result, Table
from windtunnel.reports.html import code
from windtunnel.reports.parts import figures, page
from windtunnel.trace.plain import Json
from windtunnel.version import __version__


def render(result: Result, documentation: str) -> str:
    """The page of a result, below it the experiment's own `documentation`.

    Raises:
        UsageError: jinja2 is not installed.
    """
    page.require()
    templates = resources.files(__package__) / "templates"
    environment = page.environment()
    environment.filters["code"] = code
    title, _, about = documentation.partition("\n")
    plots = [_charts.figure(result, plot) for plot in result.plots]
    return environment.from_string((templates / "experiment.html.j2").read_text("utf-8")).render(
        title=title,
        result=result,
        plots=plots,
        tables=[_table(result, table.told()) for table in result.tables],
        paragraphs=[part for part in about.split("\n\n") if part.strip()],
        version=__version__,
        style=page.stylesheet(),
        scripts=figures.scripts(plots),
    )


def _table(result: Result, table: Table) -> Json:
    heads = []
    for index, column in enumerate(table.columns):
        name, origin = _text.heading(result, column)
        heads.append({"name": name, "origin": origin, "number": _text.is_number(table, index)})
    return {"title": table.title, "heads": heads, "rows": _text.cells(table)}
