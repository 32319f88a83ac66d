"""The report as one HTML file that needs no network: what happened, what is wrong, where, and when.

Everything that comes from the program (names, paths, source lines) is escaped: by Jinja in the page, and in the data
block by writing `<` as an escape of JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources, util
from typing import Any

from understudy.errors import UsageError
from understudy.reports import _charts, _source, _timeline
from understudy.reports.summary import Device, Summary, memory_words, short, summarize
from understudy.trace.finding import Finding
from understudy.trace.trace import Trace
from understudy.trace.units import format_bytes, format_ns, format_share, plural

SUFFIX = ".html"
HISTORY = True  # its memory charts are made of the allocators' history
PACKAGES = ("jinja2", "plotly")
MAX_ROWS = 200  # of a table on the page; the JSON report holds all
MAX_STEPS = 100


def require() -> None:
    """Raise UsageError when a package that the page is made with is missing."""
    missing = [name for name in PACKAGES if util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"an HTML report is made with {' and '.join(missing)}, which is not installed: "
            "pip install 'understudy[report]' brings it, or ask for a .json, .md or .txt report"
        )


def render(trace: Trace, findings: Sequence[Finding]) -> str:
    """The page.

    Raises:
        UsageError: jinja2 or plotly is not installed.
    """
    require()
    import jinja2

    templates = resources.files(__package__) / "templates"
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"ns": format_ns, "size": format_bytes, "share": format_share, "short": short, "code": _code}
    environment.globals |= {"plural": plural, "around": _source.around, "memory_words": memory_words}
    summary = summarize(trace, findings)
    groups = _charts.kernels(trace)
    memory = _charts.memory(trace, summary.begin_ns)
    data = {
        "timeline": _timeline.timeline(trace, summary.begin_ns, summary.end_ns),
        "memory": memory,
        "roofline": _charts.roofline(trace, groups),
    }
    return environment.from_string((templates / "report.html.j2").read_text("utf-8")).render(
        summary=summary,
        memory=memory,
        data=data,
        kernels=groups[:MAX_ROWS],
        waits=_waits(summary.devices),
        transfers=_transfers(summary.devices),
        steps=_steps(summary),
        versions=trace.facts.get("versions", {}),
        max_steps=MAX_STEPS,
        max_rows=MAX_ROWS,
        style=(templates / "report.css").read_text("utf-8"),
        script=(templates / "report.js").read_text("utf-8"),
        plotly=_plotly(),
        data_json=_embedded(data),
    )


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _code(text: str) -> Any:
    """Our own messages with what stands in backticks as code; everything is escaped first."""
    import markupsafe

    parts = str(markupsafe.escape(text)).split("`")
    if len(parts) % 2 == 0:
        return markupsafe.Markup("`".join(parts))
    marked = (f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
    return markupsafe.Markup("".join(marked))


def _embedded(data: dict[str, Any]) -> str:
    """JSON that may stand inside a script element: no `<`, so neither an end tag nor a comment begins in it."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _waits(devices: Sequence[Device]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"device": device.index, "line": short(wait.site), "name": wait.name, "times": wait.times, "ns": wait.wait_ns}
        for device in devices
        for wait in device.waits.values()
    ]
    return sorted(rows, key=lambda row: -row["ns"])[:MAX_ROWS]


def _transfers(devices: Sequence[Device]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "device": device.index,
            "line": short(transfer.site),
            "name": transfer.name,
            "times": transfer.times,
            "size": transfer.size_bytes,
            "ns": transfer.duration_ns,
        }
        for device in devices
        for transfer in device.transfers.values()
    ]
    return sorted(rows, key=lambda row: -row["ns"])[:MAX_ROWS]


def _steps(summary: Summary) -> list[dict[str, Any]]:
    return [
        {
            "number": step.number,
            "ns": step.end_ns - step.start_ns,
            "kernels": step.kernels,
            "kernel_ns": step.kernel_ns,
            "copied": step.copied_bytes,
            "waits": step.synchronizations,
        }
        for step in summary.steps[:MAX_STEPS]
    ]
