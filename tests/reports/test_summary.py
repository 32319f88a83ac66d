"""The plain numbers that every report shows."""

from __future__ import annotations

from windtunnel import checks
from windtunnel.reports import brief
from windtunnel.reports.parts.summary import summarize


def test_totals_of_a_device(training):
    summary = summarize(training.trace, [])
    first, second = summary.devices
    assert (first.kernels, first.copies, first.synchronizations) == (80, 21, 21)
    assert first.copied_bytes == 10 * (1 << 20) + 10 * 4 + 4096
    assert (first.peak_allocated_bytes, first.peak_reserved_bytes) == (3 << 20, 4 << 20)
    assert (second.kernels, second.copies) == (0, 0)
    assert len(summary.steps) == 10
    assert sum(step.kernels for step in summary.steps) == 80


def test_busy_time_is_the_union_of_overlapping_streams(program):
    program.kernel(ns=100_000, stream=0).kernel(ns=10_000, stream=1)
    summary = summarize(program.trace, [])
    assert summary.timing.splits[0].busy_ns == 100_000
    assert summary.devices[0].busy_share == 1.0


def test_busy_and_what_limits_it_are_shares_of_the_same_steps(program):
    program.kernel(ns=10_000_000).step(0)  # a long start that no share is of
    for number in range(1, 5):
        program.kernel(ns=30_000).step(number)
    summary = summarize(program.trace, [])
    split, device = summary.timing.splits[0], summary.devices[0]
    assert device.busy_share == split.busy_ns / split.window_ns
    gaps = split.causes["wait"] + split.causes["input"] + split.causes["first use"]
    assert split.busy_ns <= split.window_ns - gaps
    shown = dict(brief.figures(summary))
    assert shown["busy"].endswith(" of the steps")
    assert shown["limit"].endswith(" of the steps")


def test_the_verdict_names_the_worst_finding(training):
    findings = checks.run(training.trace)
    summary = summarize(training.trace, findings)
    assert summary.verdict.startswith("EMULATED on 2 x Tesla V100-SXM2-16GB: ")
    assert "warning" in summary.verdict
    assert summary.why.startswith(f"{findings[0].code} ({findings[0].site})")
    assert summary.next == findings[0].advice


def test_a_program_that_used_no_gpu_is_told_so(program):
    summary = summarize(program.trace, [])
    assert summary.verdict.endswith("no GPU was used")


def test_measured_traces_say_so(training):
    training.trace.facts["source"] = "measured"
    summary = summarize(training.trace, [])
    assert summary.verdict.startswith("MEASURED")
    assert summary.times_are == "times are measured"


def test_the_error_band_is_said(training):
    training.trace.facts["band"] = 0.3
    assert summarize(training.trace, []).times_are == "times are modelled, within about ±30 %"
