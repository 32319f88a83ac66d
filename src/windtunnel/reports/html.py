"""The report as one HTML file that needs no network: what happened, what is wrong, where, and when.

Everything that comes from the program (names, paths, source lines) is escaped: by Jinja in the page, and in the data
block by writing `<` as an escape of JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from windtunnel.reports import brief
from windtunnel.reports.parts import charts, page, source, timeline
from windtunnel.reports.parts import time as _time
from windtunnel.reports.parts.peak import Peak
from windtunnel.reports.parts.summary import DeviceTotals, Summary, memory_words, short, summarize
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import UNKNOWN_GPU
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_bytes, format_ns, format_share, join_units, plural

if TYPE_CHECKING:
    import markupsafe

SUFFIX = ".html"
HISTORY = True  # its memory charts are made of the allocators' history
MAX_ROWS = 200  # of a table on the page; the JSON report holds all
MAX_STEPS = 100
FLOP_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
SHOWN_STEPS = 2  # at which the timeline opens


def require() -> None:
    """Raise UsageError when a package that the page is made with is missing."""
    page.require(("jinja2",))


def render(trace: Trace, findings: Sequence[Finding]) -> str:
    """The page.

    Raises:
        UsageError: jinja2 is not installed.
    """
    require()
    environment = page.environment()
    environment.filters |= {"ns": format_ns, "size": format_bytes, "share": format_share, "short": short, "code": code}
    environment.filters["flop"] = format_flop
    environment.globals |= {
        "plural": plural,
        "around": partial(source.around, trace),
        "memory_words": memory_words,
        "unknown_gpu": UNKNOWN_GPU,
    }
    summary = summarize(trace, findings)
    groups = charts.kernels(trace)
    memory = charts.memory(trace, summary.begin_ns)
    for device in memory:
        peak = next((one.peak for one in summary.devices if one.index == device["device"]), None)
        device["holders"] = [] if peak is None or not peak.has_modules else _holders(peak)
    data = {
        "timeline": timeline.timeline(trace, summary.begin_ns, summary.end_ns, _steady(summary)),
        "memory": memory,
        "roofline": charts.roofline(trace, groups),
    }
    return environment.from_string(page.template("report.html.j2")).render(
        summary=summary,
        step_words=_time.step_words(summary.timing, summary.band),
        first_use_words=_time.first_use_words(summary.timing),
        memory=memory,
        data=data,
        kernels=groups[:MAX_ROWS],
        waits=_waits(summary.devices),
        transfers=_transfers(summary.devices),
        steps=_steps(summary),
        versions=trace.facts.get("versions", {}),
        max_steps=MAX_STEPS,
        max_rows=MAX_ROWS,
        causes=_causes(summary),
        style=page.stylesheet(),
        script=page.template("report.js"),
        tiles=_tiles(summary),
        charts_script=page.template("charts.js"),
        data_json=page.embedded(data),
    )


def _holders(peak: Peak) -> list[Json]:
    """The modules that held a peak, as the page writes them."""
    return [
        {
            "place": one.module or short(one.site),
            "what": one.what,
            "line": short(one.site) if one.module else "",
            "size_bytes": one.size_bytes,
            "size": format_bytes(one.size_bytes),
        }
        for one in peak.modules
    ]


def format_flop(flop: int) -> str:
    """Arithmetic with three significant digits: "5.62 TFLOP"; empty where a kernel counts none."""
    size, name = next(((size, name) for size, name in FLOP_UNITS if flop >= size), (1, ""))
    return f"{flop / size:.3g} {name}FLOP" if flop else ""


def code(text: str) -> markupsafe.Markup:
    """Our own messages with what stands in backticks as code; everything is escaped first."""
    import markupsafe

    parts = str(markupsafe.escape(join_units(text))).split("`")
    if len(parts) % 2 == 0:
        return markupsafe.Markup("`".join(parts))
    marked = (f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
    return markupsafe.Markup("".join(marked))


def _causes(summary: Summary) -> list[str]:
    """The causes that took any device's time."""
    splits = summary.timing.splits
    return [cause for cause in splits[0].causes if any(split.causes[cause] for split in splits)] if splits else []


def _steady(summary: Summary) -> tuple[int, int] | None:
    """Where the timeline opens: after the first step, which holds what happens once."""
    steps = summary.steps[1 : 1 + SHOWN_STEPS]
    return (steps[0].start_ns, steps[-1].end_ns) if len(summary.steps) > SHOWN_STEPS else None


def _tiles(summary: Summary) -> list[Json]:
    """The four figures of the first screen; of a snapshot, which holds no work, the peak and the findings."""
    used = [device for device in summary.devices if device.used]
    fullest = max(used, key=lambda one: one.peak_allocated_bytes or 0, default=None)
    peak = None if fullest is None else fullest.peak_allocated_bytes
    total = None if fullest is None else fullest.memory_bytes
    step, _, rate = brief.step(summary).rpartition(", ")
    graver = sum(finding.severity != "info" for finding in summary.findings)
    notes = len(summary.findings) - graver
    length, _, band = step.partition(" (")
    known = summary.timing.step_ns is not None
    tiles: list[Json] = [
        {"label": "step" if known else "run", "share": None}
        | (
            {"value": length, "more": f"{band.rstrip(')')}; {rate}" if band else rate}
            if known
            else {"value": format_ns(summary.end_ns - summary.begin_ns), "more": "from the first to the last operation"}
        ),
        {
            "label": "peak of memory",
            "value": "not known" if peak is None else format_bytes(peak),
            "share": min(1.0, peak / total) if peak is not None and total else None,
            "more": f"of {format_bytes(total)}, {fullest.place}" if total and fullest is not None else "",
        },
        {
            "label": "busy",
            "value": format_share(max((device.busy_share for device in used), default=0.0)),
            "share": max((device.busy_share for device in used), default=None),
            "more": brief.limit(summary) or brief.busy(used, summary.of_window),
        },
        {"label": "findings", "value": str(graver), "share": None, "more": plural(notes, "note") if notes else ""},
    ]
    return tiles if summary.worked else [tile for tile in tiles if tile["label"] not in ("run", "busy")]


def _waits(devices: Sequence[DeviceTotals]) -> list[dict[str, object]]:
    rows: list[Json] = [
        {"device": device.index, "line": short(wait.site), "name": wait.name, "times": wait.times, "ns": wait.wait_ns}
        for device in devices
        for wait in device.waits.values()
    ]
    return sorted(rows, key=lambda row: -row["ns"])[:MAX_ROWS]


def _transfers(devices: Sequence[DeviceTotals]) -> list[Json]:
    rows: list[Json] = [
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


def _steps(summary: Summary) -> list[Json]:
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
