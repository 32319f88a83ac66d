"""The report in at most 15 lines of 80 columns: verdict, why, next, four figures, and what else there is to do.

`-v` shows the whole of `text.render`, and says each thing that is left out here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from windtunnel.reports.parts import host
from windtunnel.reports.parts.peak import Peak
from windtunnel.reports.parts.summary import DeviceTotals, Summary, short
from windtunnel.trace.finding import WORTH, Finding
from windtunnel.trace.holders import words as words_of
from windtunnel.trace.units import far_words, format_bytes, format_ns, format_share, plural

LINES = 15
LABEL = 8  # columns before the words of a line
SENTENCE = 3  # lines of `why` and of `next`
NAMED = 4  # devices whose share is said, causes that limit the step, notes by name
LEAST = 0.005  # of the steps: a cause of less limits nothing
MORE = "`-v` shows the whole report, `--report run.html` the timeline"


def lines(summary: Summary, width: int) -> list[str]:
    """The report's lines, none wider than `width` columns."""
    width = max(40, width)
    found = [
        *_labelled("verdict", summary.verdict, width, SENTENCE),
        *_labelled("why", _why(summary.why, width), width, SENTENCE),
        *_labelled("next", summary.next, width, SENTENCE),
    ]
    for label, words in figures(summary):
        found += _labelled(label, words, width, 2 if label == "held by" else 1)
    notes = _notes(summary.findings)
    room = LINES - len(found) - bool(notes) - 1
    found += _others(summary, width, room)
    if notes:
        found += _labelled("notes", notes, width, 1)
    return [*found, *_labelled("", MORE, width, 1)] if any(device.used for device in summary.devices) else found


def _why(words: str, width: int) -> str:
    """The reason, shortened before what its fix would save rather than behind it."""
    words = words.partition("; most of it held by ")[0]  # a line of their own says who holds it
    reason, fixing, saving = words.partition("; fixing this")
    if not fixing or len(_labelled("", words, width, SENTENCE + 1)) <= SENTENCE:
        return words
    end = fixing + saving.partition(" (")[0]  # without the times before and after
    for room in range(SENTENCE * (width - LABEL) - len(end), 0, -1):
        shortened = textwrap.shorten(reason, room, placeholder=" ...") + end
        if len(_labelled("", shortened, width, SENTENCE + 1)) <= SENTENCE:
            return shortened
    return words


def figures(summary: Summary) -> list[tuple[str, str]]:
    """Step, network, peak of memory, busy, what limits it and what was compiled, as far as they are known."""
    used = [device for device in summary.devices if device.used]
    working = [device for device in used if device.kernels or device.copies or device.collectives]
    rows = [
        ("step", step(summary)),
        ("network", summary.network),
        ("memory", memory(used)),
        ("busy", busy(working, summary.of_window)),
    ]
    rows.insert(3, ("held by", held_by(used)))
    rows += [("host", host_row(summary)), ("limit", limit(summary)), ("graphs", graphs(summary))]
    rows += [(label, summary.job[label]) for label in ("ranks", "job") if label in summary.job]
    return [row for row in rows if row[1]]


def step(summary: Summary) -> str:
    """The steady step with its band, or the run's length where there are too few steps."""
    timing = summary.timing
    if timing.step_ns is None or timing.steps_per_s is None:
        length_ns = summary.end_ns - summary.begin_ns
        return f"none known; {format_ns(length_ns)} in all ({summary.source})" if length_ns else ""
    words = format_ns(timing.step_ns)
    if (span := timing.step_range_ns(summary.band)) is not None:
        far = far_words(summary.band)
        words += f" ({format_ns(span[0])} to {format_ns(span[1])}, {summary.source}{f'; {far}' if far else ''})"
    else:
        words += f" ({summary.source})"
    rate = timing.steps_per_s
    return f"{words}, {rate:,.0f} a second" if rate >= 100 else f"{words}, {rate:.3g} a second"


def host_row(summary: Summary) -> str:
    """The host's own work, where there is enough of it."""
    return "" if summary.host is None else host.figure_words(summary.host, short(summary.host.site))


def memory(used: Sequence[DeviceTotals]) -> str:
    """The device with the highest peak."""
    known = [device for device in used if device.peak_allocated_bytes is not None]
    if not known:
        return ""
    device = max(known, key=lambda one: one.peak_allocated_bytes or 0)
    peak = device.peak_allocated_bytes or 0
    words = f"{format_bytes(peak)} at its peak on {device.place}"
    if device.peak_reserved_bytes:
        words += f", {format_bytes(device.peak_reserved_bytes)} reserved"
    return f"{words} of {format_bytes(device.memory_bytes)}" if device.memory_bytes else words


def held_by(used: Sequence[DeviceTotals]) -> str:
    """The modules that held most of the highest peak, where the history was kept."""
    peaks = [device.peak for device in used if device.peak is not None and device.peak.has_modules]
    return holders(max(peaks, key=lambda peak: peak.allocated_bytes), NAMED) if peaks else ""


def holders(peak: Peak, most: int) -> str:
    """The modules that hold most, or the lines of what is no module's."""
    return words_of(peak.modules, most, short)


def busy(used: Sequence[DeviceTotals], of_window: str) -> str:
    """The share of each device's steps, or of the run where there are too few, in which it had work."""
    shares = [f"{device.place} {format_share(device.busy_share)}" for device in used[:NAMED]]
    more = f" and {len(used) - NAMED} more" if len(used) > NAMED else ""
    return f"{', '.join(shares)}{more} {of_window}" if shares else ""


def graphs(summary: Summary) -> str:
    """What was compiled, in so long."""
    compiled = summary.compiled
    if compiled is None:
        return ""
    fused = f"{plural(compiled.total('generated'), 'kernel')} from {plural(compiled.total('nodes'), 'node')}"
    words = f"{plural(len(compiled.graphs), 'compiled graph')}, {fused}"
    if compiled.breaks:
        words += f", {plural(compiled.breaks, 'break')}"
    return words + (f"; {format_ns(compiled.compile_ns)} to compile" if compiled.compile_ns else "")


def limit(summary: Summary) -> str:
    """The causes that take most of the first used device's steps, or of the run where there are too few."""
    split = next(iter(summary.timing.splits), None)
    if split is None or not split.window_ns:
        return ""
    shares = {cause: spent / split.window_ns for cause, spent in split.causes.items()}
    ranked = sorted((cause for cause in shares if shares[cause] >= LEAST), key=lambda cause: -shares[cause])
    shown = [f"{cause} {format_share(shares[cause])}" for cause in ranked[:NAMED]]
    of = f" on cuda:{split.device}" if len(summary.timing.splits) > 1 else ""
    return f"{', '.join(shown)} {summary.of_window}{of}" if shown else ""


def _others(summary: Summary, width: int, room: int) -> list[str]:
    """The findings that are not the reason already given, a line each."""
    graver = [finding for finding in summary.findings if finding.severity != "info"]
    if graver and summary.why.startswith(graver[0].code):
        graver = graver[1:]
    shown = graver if len(graver) <= room else graver[: max(0, room - 1)]
    found: list[str] = []
    for number, finding in enumerate(shown):
        of = f" of the {finding.saved_of}" if finding.saved_of else ""
        saves = f"saves {format_share(finding.saved_share)}{of}: " if finding.saved_share else ""
        where = f" {short(finding.site)}" if finding.site.file else ""
        found += _labelled("also" if not number else "", f"{saves}{finding.code}{where}", width, 1)
    if len(shown) < len(graver) and room > 0:
        found += _labelled("also" if not shown else "", plural(len(graver) - len(shown), "more finding"), width, 1)
    return found


def _notes(findings: Sequence[Finding]) -> str:
    """The codes of what costs nothing that one could measure."""
    codes = list(dict.fromkeys(finding.code for finding in findings if finding.severity == "info"))
    if not codes:
        return ""
    more = f" and {len(codes) - NAMED} more" if len(codes) > NAMED else ""
    cheap = all((finding.saved_share or 0.0) < WORTH for finding in findings if finding.severity == "info")
    return f"{', '.join(codes[:NAMED])}{more} ({'no measurable cost' if cheap else 'too short a run to weigh'})"


def _labelled(label: str, words: str, width: int, most: int) -> list[str]:
    wrapped = textwrap.wrap(words, width - LABEL, max_lines=most, placeholder=" ...", break_on_hyphens=False)
    return [f"{label if not number else '':{LABEL}}{line}" for number, line in enumerate(wrapped)]
