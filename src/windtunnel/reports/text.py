"""The report for a terminal, and the same without colours as a `.txt` file: verdict, why, next, then tables."""

from __future__ import annotations

import io
import math
import os
import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from windtunnel.reports import brief
from windtunnel.reports.parts import time as _time
from windtunnel.reports.parts.compiled import SAVED
from windtunnel.reports.parts.summary import DeviceTotals, Summary, activity, memory_words, short, summarize
from windtunnel.trace.finding import Finding
from windtunnel.trace.holders import OTHER
from windtunnel.trace.operation import UNKNOWN_GPU, Site
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_bytes, format_ns, format_share, join_units, plural

SUFFIX = ".txt"
MAX_FINDINGS = 12  # rows of the table on a terminal; the file formats hold all
MAX_LINES = 3  # source lines named for each device's waits
MIN_KERNELS = 100  # before a device's work over time is drawn
BARS = " ▁▂▃▄▅▆▇█"
COLUMNS = 32
PLAIN = {"±": "+-", "µ": "u", "×": "x"} | dict.fromkeys(BARS[1:], "#")  # where the terminal has not the sign
NARROW = 72  # columns below which a table would break its words, so findings are written as paragraphs
JOINT = "\ue000"  # between a number and its unit while lines are wrapped: rich breaks them at no-break spaces too
COLOURS = {"error": "bold red", "warning": "yellow", "info": "dim"}


def render(
    trace: Trace,
    findings: Sequence[Finding],
    *,
    width: int = 100,
    color: bool = False,
    max_findings: int | None = None,
) -> str:
    """The report as text.

    Args:
        trace: what happened.
        findings: what `checks.run` said of it.
        width: columns to fill.
        color: whether to use ANSI colours.
        max_findings: how many findings to show, with what costs nothing in one line at the end; all in full when None.
    """
    summary = summarize(trace, findings)
    out = io.StringIO()
    console = console_for(out, max(width, 20), color)
    for label, words in (("verdict", summary.verdict), ("why", summary.why), ("next", summary.next)):
        console.print(Text(f"{label:8}", style="bold") + Text(words), soft_wrap=True)
    _print_devices(console, trace, summary)
    _print_findings(console, summary, max_findings)
    if summary.silent_checks:
        console.print(Text(summary.silent_checks, style="dim"))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).replace(JOINT, " ") + "\n"


def show(trace: Trace, findings: Sequence[Finding], file: TextIO | None = None, verbose: bool = False) -> None:
    """Print the report on `file` (stderr by default), as wide as the terminal and coloured where that is wanted.

    It takes 15 lines; `verbose` shows all of it.
    """
    file = sys.stderr if file is None else file
    if file is None:  # stderr is closed: `2>&-`
        return
    width = shutil.get_terminal_size((100, 24)).columns
    if verbose:
        text = render(trace, findings, width=width, color=is_coloured(file), max_findings=MAX_FINDINGS)
    else:
        text = _brief(summarize(trace, findings), width, is_coloured(file))
    encoding = getattr(file, "encoding", None) or "utf-8"
    for sign, plain in PLAIN.items():
        if not sign.encode(encoding, "ignore"):
            text = text.replace(sign, plain)
    file.write(text.encode(encoding, "replace").decode(encoding))
    file.flush()


def _brief(summary: Summary, width: int, color: bool) -> str:
    worst = next((finding.severity for finding in summary.findings), "info")
    shown = brief.lines(summary, width)
    if color:
        styles = ["1;31" if worst == "error" else "33" if worst == "warning" else "32", "0", "0"]
        shown = [f"\033[1m{line[: brief.LABEL]}\033[0m{line[brief.LABEL :]}" for line in shown]
        head, _, rest = shown[0].partition("\033[0m")
        shown[0] = f"{head}\033[0m\033[{styles[0]}m{rest}\033[0m"
    return "\n".join(line.rstrip() for line in shown) + "\n"


def console_for(out: TextIO, width: int, color: bool) -> Console:
    """A console of `width` columns that writes words as they are into `out`, with ANSI colours or without."""
    return Console(
        file=out,
        width=width,
        force_terminal=color,
        force_jupyter=False,  # it would show each line by itself there
        no_color=not color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def is_coloured(file: TextIO) -> bool:
    """Whether colours are wanted on `file`: on a terminal that has them, unless NO_COLOR is set."""
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _print_devices(console: Console, trace: Trace, summary: Summary) -> None:
    used = [device for device in summary.devices if device.used]
    if not used:
        return
    console.print()
    console.print(Text(f"{summary.stamp}: {summary.times_are}", style="dim"))
    for words in _time_lines(summary):
        _print_paragraph(console, words, 0)
    splits = {split.device: split for split in summary.timing.splits}
    for device in used:
        name = f" {device.name}" if device.name != UNKNOWN_GPU else ""
        console.print(Text(f"{device.place}{name}", style="bold"))
        for words in _device_lines(device, summary):
            _print_paragraph(console, words)
        if device.index in splits:
            for words in _use_lines(splits[device.index], summary.timing):
                _print_paragraph(console, words)
        if device.kernels >= MIN_KERNELS:
            console.print(Text(f"  {_bars(trace, device, summary)}"))
    idle = [device for device in summary.devices if device not in used]
    if idle and not summary.job:  # of a cluster they are other ranks'
        names = ", ".join(device.place for device in idle)
        console.print(Text(f"{names}: not used", style="dim"))


def _print_paragraph(console: Console, words: str, indent: int = 2) -> None:
    """Words with an indent, and the lines after the first a little deeper."""
    for number, line in enumerate(Text(join_units(words, JOINT)).wrap(console, max(20, console.width - indent - 2))):
        console.print(Text(" " * (indent + 2 * (number > 0))) + line)


def _time_lines(summary: Summary) -> list[str]:
    """The step, and what happened once before it."""
    step = _time.step_words(summary.timing, summary.band)
    once = _time.first_use_words(summary.timing)
    lines = [
        ("step", step),
        ("network", summary.network),
        ("the host's own work", brief.host_row(summary)),
        ("throughput", summary.throughput),
        *summary.job.items(),
        ("once, at first use", once),
        ("jit of JAX by", summary.jit),
    ]
    if summary.compiled is not None:
        made = f"{summary.compiled.words}; {SAVED}"
        lines += [("compiled graphs", made), ("compiling took", summary.compiled.time_words)]
    return [f"{label}: {words}" for label, words in lines if words]


def _use_lines(split: _time.Split, timing: _time.RunTiming) -> list[str]:
    lines = [f"time: {words}" for words in (_time.split_words(split),) if words]
    lines += [words for words in (_time.use_words(split),) if words]
    top = [_time.operator_words(one) for one in timing.operators if one.device == split.device][:MAX_LINES]
    return lines + ([f"most time in {', '.join(top)}"] if top else [])


def _device_lines(device: DeviceTotals, summary: Summary) -> list[str]:
    lines = [f"memory at its peak: {memory_words(device)}", *peak_lines(device)]
    if summary.worked:
        collectives = f"{plural(device.collectives, 'collective')}, " if device.collectives else ""
        copied = f"{plural(device.copies, 'copy')} ({format_bytes(device.copied_bytes)})"
        busy = f"busy {format_share(device.busy_share)} {summary.of_window}"
        lines.append(f"{plural(device.kernels, 'kernel')}, {copied}, {collectives}{busy}")
    if device.synchronizations:
        lines.append(
            f"{plural(device.synchronizations, 'host synchronization')}, {format_ns(device.wait_ns)} waited: "
            + sync_lines(device)
        )
    return lines


def _bars(trace: Trace, device: DeviceTotals, summary: Summary) -> str:
    """The device's work over time: a column for each thirty-second part, as high as its busy share."""
    shares = activity(trace, device.index, summary.begin_ns, summary.end_ns, COLUMNS)
    top = len(BARS) - 1
    bars = "".join(BARS[min(top, math.ceil(share * top))] for share in shares)
    return f"over {format_ns(summary.end_ns - summary.begin_ns)}: |{bars}|"


def peak_lines(device: DeviceTotals) -> list[str]:
    """What held the memory at its peak: by category, and the lines with most of it."""
    peak = device.peak
    if peak is None or not peak.allocated_bytes:
        return []
    late = (device.peak_allocated_bytes or 0) - peak.allocated_bytes
    before = f" ({format_bytes(late)} more was there before the history was kept)" if late > 0 else ""
    known = set(peak.categories) != {OTHER}  # a snapshot that PyTorch wrote has no categories
    made = ", ".join(f"{name} {format_bytes(size)}" for name, size in peak.categories.items())
    held = ", ".join(
        f"{short(holder.site)} {holder.category + ' ' if known else ''}{format_bytes(holder.size_bytes)}"
        + (f" in {plural(holder.blocks, 'block')}" if holder.blocks > 1 else "")
        for holder in peak.holders[:MAX_LINES]
    )
    if peak.has_modules:
        held = brief.holders(peak, MAX_LINES)
    return [f"made of {made}{before}", f"held by {held}"] if known else [f"held by {held}{before}"]


def sync_lines(device: DeviceTotals) -> str:
    """The source lines that blocked the host, the most expensive first: "train.py:12 (400×)"."""
    lines: dict[str, tuple[int, int]] = {}
    for wait in device.waits.values():
        name = short(wait.site)
        times, waited = lines.get(name, (0, 0))
        lines[name] = times + wait.times, waited + wait.wait_ns
    ranked = sorted(lines.items(), key=lambda item: (-item[1][1], item[0]))
    words = ", ".join(f"{name} ({times:,}×)" for name, (times, _) in ranked[:MAX_LINES])
    return words + (f" and {plural(len(ranked) - MAX_LINES, 'more line')}" if len(ranked) > MAX_LINES else "")


def _stacks(finding: Finding) -> str:
    """Where the lines of a finding were called from; empty unless stacks were kept."""
    stacks = [site for site in (finding.site, finding.other) if site.stack]
    return "".join(
        f"\n{short(site)} was called from " + ", ".join(f"{short(Site(*frame))} {frame[2]}" for frame in site.stack)
        for site in stacks
    )


def _print_findings(console: Console, summary: Summary, limit: int | None) -> None:
    findings = summary.findings
    if not findings:
        return
    remarks = [] if limit is None else [finding for finding in findings if finding.severity == "info"]
    graver = [finding for finding in findings if finding not in remarks]
    shown = graver[:limit]
    console.print()
    if console.width < NARROW:
        for finding in shown:
            head = Text(f"{finding.severity} {finding.code}", style=COLOURS[finding.severity])
            console.print(head + Text(f" {short(finding.site)}", style=""))
            console.print(Text(f"  {join_units(finding.message, JOINT)}"))
    elif shown:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", expand=False)
        for title in ("finding", "line", "what"):
            table.add_column(title, overflow="fold", no_wrap=False)
        for finding in shown:
            table.add_row(
                Text(f"{finding.severity}\n{finding.code}", style=COLOURS[finding.severity]),
                Text(short(finding.site)),
                Text(join_units(finding.message, JOINT))
                + Text(f"\n{join_units(finding.advice, JOINT)}{_stacks(finding)}", style="dim"),
            )
        console.print(table)
    if len(shown) < len(graver):
        rest = plural(len(graver) - len(shown), "more finding")
        console.print(Text(f"{rest}: `--report run.html` or `run.json` holds all of them", style="dim"))
    if remarks:
        console.print(Text("notes (no measurable cost):", style="dim"))
        for finding in remarks[:limit]:
            _print_paragraph(console, f"{finding.code} {short(finding.site)}: {finding.message}; {finding.advice}")
        if limit is not None and len(remarks) > limit:
            console.print(Text(f"  and {plural(len(remarks) - limit, 'more note')}", style="dim"))
