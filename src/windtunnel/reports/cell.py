"""The report as a notebook shows it below a cell: verdict, four figures, findings with their lines; no script."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from windtunnel.reports.parts import source
from windtunnel.reports.parts.summary import Summary, short, summarize
from windtunnel.trace.finding import Finding
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_bytes, format_ns, format_share, plural

MOST = 8
"""Findings that are shown; `session.report("report.html")` has all of them."""
BACKTICKS = re.compile(r"`([^`]+)`")
COLOURS = {"error": "#d1242f", "warning": "#bf8700", "info": "#6e7781"}
STYLE = (
    "<style>.windtunnel{font:14px/1.45 system-ui,sans-serif;max-width:60em}.windtunnel p{margin:.2em 0}"
    ".windtunnel .tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9em,1fr));gap:8px;margin:10px 0}"
    ".windtunnel .tiles div{border:1px solid #8884;border-radius:6px;padding:6px 14px}"
    ".windtunnel .tiles b{display:block;font-size:1.25em}"
    ".windtunnel .finding{border-left:4px solid;padding:1px 12px;margin:8px 0}"
    ".windtunnel pre{margin:.3em 0;white-space:pre-wrap;background:#8881;padding:4px 8px}</style>"
)


def render(trace: Trace, findings: Sequence[Finding]) -> str:
    """The report as HTML that stands inside another page; what comes from the program is escaped."""
    return f'{STYLE}<div class="windtunnel">{"".join(_parts(trace, findings))}</div>'


def _parts(trace: Trace, findings: Sequence[Finding]) -> Iterator[str]:
    summary = summarize(trace, findings)
    yield f"<p><b>{escape(summary.verdict)}</b></p>"
    if not findings:  # else they say it
        yield "".join(f"<p>{_code(words)}</p>" for words in (summary.why, summary.next) if words)
    yield f'<div class="tiles">{"".join(f"<div><b>{escape(a)}</b>{escape(b)}</div>" for a, b in tiles(summary))}</div>'
    for finding in findings[:MOST]:
        yield _finding(trace, finding)
    if len(findings) > MOST:
        yield f"<p>{plural(len(findings) - MOST, 'more finding')}</p>"
    yield f"<p><small>{escape(summary.times_are)}</small></p>"


def tiles(summary: Summary) -> Iterator[tuple[str, str]]:
    """A step's time, the fullest GPU's peak, the busiest GPU, the number of findings: each a figure and what it is."""
    step = summary.timing.step_ns
    if step is not None:
        yield format_ns(step), "a step, modelled" if summary.emulated else "a step, measured"
    else:
        yield format_ns(summary.end_ns - summary.begin_ns), "from the first kernel to the last"
    peaks = [(one.peak_allocated_bytes, one) for one in summary.devices if one.peak_allocated_bytes is not None]
    if peaks:
        most, device = max(peaks, key=lambda pair: pair[0])
        total = "" if device.memory_bytes is None else f" of {format_bytes(device.memory_bytes)}"
        yield format_bytes(most), f"allocated at the peak{total}, {device.place}"
    if summary.devices:
        busiest = max(summary.devices, key=lambda one: one.busy_share)
        yield format_share(busiest.busy_share), f"{summary.of_window} {busiest.place} was busy"
    yield str(len(summary.findings)), "finding" if len(summary.findings) == 1 else "findings"


def _finding(trace: Trace, finding: Finding) -> str:
    lines = "".join(
        f"{'→' if line.marked else ' '} {line.number:3} {escape(line.text)}\n"
        for line in source.around(trace, finding.site)
        if abs(line.number - finding.site.line) <= 1
    )
    code = f"<pre>{lines}</pre>" if lines else ""
    return (
        f'<div class="finding" style="border-color:{COLOURS[finding.severity]}"><p><b>{finding.severity}: '
        f"{escape(finding.code)}</b> {escape(short(finding.site)) if finding.site.file else ''}</p>"
        f"<p>{_code(finding.message)}</p>{code}<p>{_code(finding.advice)}</p></div>"
    )


def _code(words: str) -> str:
    """Our own words with what stands in backticks as code; everything is escaped first."""
    return BACKTICKS.sub(r"<code>\1</code>", escape(words))
