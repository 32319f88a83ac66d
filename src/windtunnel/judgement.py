"""Findings with what their fixes would save: the checks say what is there, a replay with each fix what it is worth.

A fix that saves 3 % of the step makes its finding a warning, one that saves less a note; so "nothing to fix" means that
no known fix saves as much. Where a check keeps silent because of a threshold of its own, the fix is tried all the same.
A program of fewer than `SHORT` kernels is judged by the checks' own rules upward only: what they report is not
promoted, since start-up is most of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel import checks
from windtunnel.analysis.fixes import WAITS
from windtunnel.analysis.savings import Saving, Savings
from windtunnel.errors import FileFormatError
from windtunnel.trace.finding import WORTH, Finding
from windtunnel.trace.operation import Kind
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_ns, format_share

SHORT = 2_000
"""Kernels, about 20 ms of launching: a shorter program is over before a change would pay."""
MOST = 8
"""Findings whose fixes are tried one by one, the most expensive first."""
TOGETHER = 1.5
"""Waits are named together if removing all of them saves this many times what removing the best one saves."""

PART = 0.2
"""Share of the idle time of the worst line below which a line is not named with it."""


def judge(traces: Sequence[Trace]) -> list[Finding]:
    """The findings of each process of a run, one process after the other, weighed by what their fixes would save."""
    return [
        finding
        for trace, (run, findings) in zip(traces, checks.examine(traces), strict=True)
        for finding in weigh(trace, findings, run.candidates(trace))
    ]


def too_short(trace: Trace) -> bool:
    """Whether the trace holds too few kernels to say that there is nothing to fix."""
    return trace.rows.column(0).count(Kind.KERNEL) < SHORT


def weigh(trace: Trace, findings: Sequence[Finding], candidates: Sequence[Finding] = ()) -> list[Finding]:
    """The findings of one trace with the share that each fix saves, and the severity that follows from it."""
    tried = {finding.fix for finding in findings if finding.fix}
    extra = [one for one in candidates if one.fix not in tried and not too_short(trace)]
    if not extra and not tried:
        return list(findings)
    try:
        savings = Savings(trace)
    except FileFormatError:
        return list(findings)
    order = sorted([one for one in findings if one.fix and one.saved_share is None], key=lambda one: -one.lost_ns)
    found = {one: savings.of([one]) for one in [*order[:MOST], *extra]}
    _together(savings, found, [one for one in order[:MOST] if one.fix in WAITS])
    short = too_short(trace)
    weighed = [_weighed(one, found.get(one), short) for one in findings]
    for one in extra:
        saving = found[one]
        if saving is not None and saving.share >= WORTH:
            weighed.append(_weighed(one._replace(severity="warning"), saving, short))
    return sorted(weighed, key=checks.rank)


def _together(savings: Savings, found: dict[Finding, Saving | None], waits: list[Finding]) -> None:
    """Give waits that hide one another's time the share that all of them together have."""
    if len(waits) < 2:
        return
    best = max(saving.share if saving else 0.0 for saving in (found[one] for one in waits))
    whole = savings.of_waits(waits)
    if whole is None or whole.share < WORTH or whole.share < TOGETHER * best:
        return
    largest_ns = max(one.lost_ns for one in waits)
    for one in waits:
        own = found[one]
        if own is not None and own.share < WORTH and one.lost_ns >= PART * largest_ns:
            found[one] = whole


def _weighed(finding: Finding, saving: Saving | None, short: bool) -> Finding:
    if saving is None or finding.severity == "error":
        return finding
    share = max(0.0, saving.share)
    if share < WORTH:
        return finding._replace(severity="info", saved_share=share, saved_of=saving.of)
    severity = finding.severity if short else "warning"
    return finding._replace(
        severity=severity,
        message=f"{finding.message}; {_words(saving, share)}",
        saved_share=share,
        saved_of=saving.of,
    )


def _words(saving: Saving, share: float) -> str:
    what = "fixing this and the other waits" if saving.together else "fixing this"
    change = f" ({format_ns(round(saving.before_ns))} to {format_ns(round(saving.after_ns))})"
    return f"{what} would save about {format_share(share)} of the {saving.of}{change}"
