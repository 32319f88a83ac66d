"""The report of 15 lines."""

from __future__ import annotations

import pytest

from windtunnel.reports import brief
from windtunnel.reports.parts.summary import summarize
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Site
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import far_words

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
    assert "also    saves 30 %: code-2 train.py:2" in lines


@pytest.mark.parametrize("width", [60, 80])
def test_what_a_fix_saves_is_not_cut_off(training: Trace, width: int) -> None:
    saving = "; fixing this would save about 30 % of the step (10.0 ms to 7.00 ms)"
    lines = brief.lines(summarize(training.trace, [findings(2)[0]._replace(message=LONG + saving)]), width)
    start = next(number for number, line in enumerate(lines) if line.startswith("why"))
    why = " ".join(line[8:] for line in lines[start : start + brief.SENTENCE])
    assert why.startswith("code-1 (train.py:1): every output")
    assert why.endswith("...; fixing this would save about 30 % of the step")


def test_a_warning_does_not_explain_a_failure(training: Trace) -> None:
    training.trace.facts["exit_code"] = 3
    lines = brief.lines(summarize(training.trace, findings(3)), 80)
    assert "the program failed (exit code 3)" in lines[0]
    assert "no finding explains it" in " ".join(lines[:2])
    assert "also    saves 30 %: code-1 train.py:1" in lines
    assert "        saves 30 %: code-2 train.py:2" in lines


@pytest.mark.parametrize("fact", [{"exit_code": 66, "refusal": "it cannot be emulated"}, {"exit_code": 130}])
def test_no_warning_is_lost_where_another_reason_is_the_headline(training: Trace, fact: dict[str, object]) -> None:
    training.trace.facts.update(fact)
    lines = brief.lines(summarize(training.trace, findings(3)), 80)
    assert not any(line.startswith("why     code") for line in lines)
    assert "also    saves 30 %: code-1 train.py:1" in lines


def test_each_process_of_a_job_is_judged_by_its_own_kernels(training: Trace) -> None:
    training.trace.facts["exit_code"] = 0
    kernels = sum(row[0] == 0 for row in training.trace.rows)
    lines = brief.lines(summarize(training.trace, []), 80)
    assert ("too short to judge" in lines[0]) == (kernels < 2_000)
    training.trace.facts["processes"] = 2 * kernels
    assert "too short to judge" in brief.lines(summarize(training.trace, []), 80)[0]


def test_a_saving_is_never_cut(program):
    program.kernel()
    deep = Site("/a/very/" + "long/" * 20 + "path/train.py", 7)
    findings = [
        Finding("code-1", "warning", "m", "a", Site("train.py", 1), saved_share=0.5, saved_of="step"),
        Finding("a-code", "warning", "m", "a", deep, saved_share=0.3, saved_of="step"),
    ]
    shown = brief.lines(summarize(program.trace, findings), 80)
    assert any(line.startswith("also    saves 30 % of the step: a-code") for line in shown)
    assert max(map(len, shown)) <= 80


def test_a_step_with_nothing_measured_near_it_says_so() -> None:
    assert far_words(None) == far_words(0.39) == ""
    assert far_words(0.5) == "no measurement near this: a factor of 2"
