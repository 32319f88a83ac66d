"""The report as Markdown, for a pull request or a GitHub step summary."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from windtunnel.reports.parts.summary import Summary, memory_words, short, summarize
from windtunnel.reports.text import sync_lines
from windtunnel.trace.finding import Finding
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_bytes, format_share

SUFFIX = ".md"
MARKS = {"error": "🔴", "warning": "🟡", "info": "⚪"}
_SPECIAL = str.maketrans({character: "\\" + character for character in "\\*_{}[]<>#|!~"})


def render(trace: Trace, findings: Sequence[Finding]) -> str:
    """The report as GitHub Markdown; what comes from the program is escaped."""
    summary = summarize(trace, findings)
    lines = [
        f"**{plain(summary.verdict)}**",
        "",
        f"- why: {plain(summary.why)}",
        f"- next: {plain(summary.next)}",
        f"- {summary.stamp}: {summary.times_are}",
        *([f"- {plain(summary.silent_checks)}"] if summary.silent_checks else []),
        "",
    ]
    if summary.devices:
        lines += _devices(summary)
    if summary.findings:
        lines += _table(
            ("", "finding", "line", "what", "do"),
            [
                (
                    MARKS[finding.severity],
                    f"`{finding.code}`",
                    plain(short(finding.site)),
                    plain(finding.message),
                    plain(finding.advice),
                )
                for finding in summary.findings
            ],
        )
    return "\n".join(lines)


def _devices(summary: Summary) -> list[str]:
    return _table(
        ("device", "peak memory", "kernels", "copies", "busy", "host synchronizations"),
        [
            (
                plain(f"{device.place} {device.name}"),
                memory_words(device),
                f"{device.kernels:,}",
                f"{device.copies:,} ({format_bytes(device.copied_bytes)})",
                format_share(device.busy_share),
                f"{device.synchronizations:,}" + (f": {plain(sync_lines(device))}" if device.waits else ""),
            )
            for device in summary.devices
        ],
    )


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    head = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    return [*head, *("| " + " | ".join(row) + " |" for row in rows), ""]


def plain(text: str) -> str:
    """Escape what Markdown would read, except inside the backticks that our own messages use around code."""
    parts = text.replace("\n", " ").split("`")
    if len(parts) % 2 == 0:
        return text.replace("\n", " ").replace("`", "'").translate(_SPECIAL)
    return "".join(_code(part) if number % 2 else part.translate(_SPECIAL) for number, part in enumerate(parts))


def _code(text: str) -> str:
    """Code; in a tag of HTML where it holds what some readers of Markdown would take for one."""
    return f"<code>{escape(text).replace('|', '&#124;')}</code>" if set(text) & set("<>&|") else f"`{text}`"
