"""The report of 15 lines."""

from __future__ import annotations

import pytest

from understudy.reports import brief
from understudy.reports.parts.summary import summarize
from understudy.trace.finding import Finding
from understudy.trace.operation import Site
from understudy.trace.trace import Trace

LONG = "every output is compared with every target, so that the model learns their mean and nothing else at all " * 4


def findings(count: int) -> list[Finding]:
    return [Finding(f"code-{n}", "warning", LONG, LONG, Site("train.py", n), saved_share=0.3) for n in range(1, count)]


@pytest.mark.parametrize("count", [0, 1, 3, 40])
@pytest.mark.parametrize("width", [60, 80, 200])
def test_it_is_never_longer_or_wider(training: Trace, count: int, width: int) -> None:
    trace = training.trace
    notes = [Finding(f"note-{n}", "info", LONG, LONG) for n in range(count)]
    lines = brief.lines(summarize(trace, [*findings(count), *notes]), width)
    assert len(lines) <= brief.LINES
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines if not line.startswith(" ")][:3] == ["verdict", "why", "next"]


def test_the_others_say_what_they_save(training: Trace) -> None:
    lines = brief.lines(summarize(training.trace, findings(4)), 80)
    assert "also    code-2 train.py:2: would save 30 %" in lines
