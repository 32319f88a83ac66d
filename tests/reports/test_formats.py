"""Text, JSON and Markdown, and how a path chooses among them."""

from __future__ import annotations

import io
import json

import pytest

from windtunnel import checks, reports
from windtunnel.errors import UsageError
from windtunnel.reports import html, md, text
from windtunnel.reports import json as json_report
from windtunnel.reports.parts.summary import summarize
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Note, Site
from windtunnel.trace.units import join_units


def test_text_begins_with_verdict_why_next(training):
    lines = text.render(training.trace, checks.run(training.trace)).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["verdict", "why", "next"]
    assert "EMULATED" in lines[0]


def test_text_says_what_each_device_did(training):
    rendered = text.render(training.trace, [])
    assert "memory at its peak: 3.00 MiB allocated (modelled), 4.00 MiB reserved of 16.0 GiB" in rendered
    assert "80 kernels, 21 copies" in rendered
    assert "train.py:15 (10×)" in rendered
    assert "cuda:1: not used" in rendered
    assert "times are modelled" in rendered


def test_what_a_line_cannot_hold_goes_on_below_its_words(training):
    lines = text.render(training.trace, [], width=60).splitlines()
    number = next(number for number, line in enumerate(lines) if line.startswith("  memory at its peak"))
    assert lines[number + 1].startswith("    ")
    assert max(map(len, lines[4:])) <= 60


@pytest.mark.parametrize("width", range(24, 60, 5))
def test_no_line_begins_with_a_unit(training, width):
    lines = text.render(training.trace, [], width=width).splitlines()
    assert not [
        line for line in lines if line.split() and line.split()[0] in ("%", "B", "KiB", "MiB", "GiB", "µs", "ms")
    ]


def test_signs_that_a_terminal_lacks_are_spelt(training):
    terminal = io.TextIOWrapper(io.BytesIO(), "ascii")
    training.trace.facts["devices"][0] |= {"peak_band": 0.05}
    text.show(training.trace, [], terminal, verbose=True)
    shown = terminal.buffer.getvalue().decode("ascii")
    assert "+-5 %" in shown
    assert "train.py:15 (10x)" in shown
    assert "?" not in shown


def test_a_closed_stderr_gets_no_report(training, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    text.show(training.trace, [])


def test_a_device_that_did_nothing_says_so(program):
    program.kernel().trace.facts["devices"] = [{"peak_allocated_bytes": 0, "memory_bytes": 16 << 30}] * 2
    program.trace.facts["gpus"] *= 2
    assert "| cuda:1 Tesla V100-SXM2-16GB | nothing of 16.0 GiB | 0 |" in md.render(program.trace, [])


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_tables_fit_the_terminal(training, width):
    rendered = text.render(training.trace, checks.run(training.trace), width=width)
    assert all(len(line) <= width for line in rendered.splitlines()[4:])


def test_no_colour_codes_unless_asked_for(training):
    findings = checks.run(training.trace)
    assert "\x1b[" not in text.render(training.trace, findings)
    assert "\x1b[" in text.render(training.trace, findings, color=True)


def test_no_color_is_respected_on_a_terminal(training, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain = Terminal(), Terminal()
    text.show(training.trace, [], coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    text.show(training.trace, [], plain)
    assert "\x1b[" in coloured.getvalue()
    assert "\x1b[" not in plain.getvalue()


def test_little_to_say_takes_three_lines(program):
    assert len(text.render(program.trace, []).splitlines()) == 3


def test_work_over_time_is_drawn(program):
    for _ in range(200):
        program.kernel(ns=30_000)
    program.host(12_000_000).kernel()
    bars = next(line for line in text.render(program.trace, []).splitlines() if line.startswith("  over "))
    drawn = bars.partition("|")[2].rpartition("|")[0]
    assert len(drawn) == 32
    assert drawn[0] == "█"
    assert drawn[20] == " "


def test_a_terminal_gets_the_text_of_what_costs_nothing(training):
    findings = checks.run(training.trace)
    rendered = text.render(training.trace, findings, max_findings=5)
    _, _, notes = rendered.partition("notes (no measurable cost):\n")
    assert notes.startswith("  host-sync train.py:20: ")
    said = " ".join(notes.split())
    assert all(f"{one.message}; {one.advice}" in said for one in findings if one.severity == "info")
    rendered = text.render(training.trace, [*findings, *[findings[-1]] * 9], max_findings=5)
    assert "more notes" in rendered


def test_a_program_that_torch_compile_did_not_compile_is_so_called_first(training):
    plain = summarize(training.trace, []).verdict
    detail = (("what", "compile"), ("name", "Net"), ("cure", 'pip install "triton"'))
    training.trace.notes.append(Note("not-modelled", Site("train.py", 2), detail))
    place, _, rest = plain.partition(": ")
    compiled = summarize(training.trace, []).verdict
    said = 'uncompiled: torch.compile compiled nothing here (pip install "triton"). '
    assert compiled == f"{place}, {said}{rest[:1].upper()}{rest[1:]}"


def test_json_has_the_documented_keys(training):
    findings = checks.run(training.trace)
    report = json.loads(json_report.render(training.trace, findings))
    assert report["schema_version"] == 2
    assert report["emulated"] is True
    assert len(report["findings"]) == len(findings)
    first = report["findings"][0]
    assert {"code", "severity", "file", "line", "message", "advice", "count", "lost_ns"} <= set(first)
    assert report["devices"][0]["transfers"][0]["size_bytes"] == 10 << 20


def test_markdown_escapes_what_the_program_named():
    finding = Finding("host-sync", "warning", "a | b <script>", "do", Site("<img src=x>|.py", 3))
    rendered = md.render(_empty(), [finding])
    assert "<script>" not in rendered.replace("\\<script\\>", "")
    assert "\\<img src=x\\>\\|.py:3" in rendered


def test_the_suffix_chooses_the_format_and_folders_are_made(training, tmp_path):
    target = tmp_path / "new" / "run.json"
    reports.write(target, training.trace, [])
    assert json.loads(target.read_text())["schema_version"] == 2


def test_an_unknown_suffix_names_the_known_ones(training, tmp_path):
    with pytest.raises(UsageError, match=r"run\.pdf.*\.json"):
        reports.write(tmp_path / "run.pdf", training.trace, [])


def _empty():
    from windtunnel.trace.trace import Trace

    return Trace()


def test_the_peak_says_how_sure_it_is(training):
    totals = training.trace.facts["devices"][0]
    totals |= {"peak_band": 0.05, "peak_at_most_bytes": 5 << 20, "peak_unsure": "aten::topk"}
    sentence = "3.00 MiB allocated (modelled, ±5 %, at most 5.00 MiB if aten::topk takes more)"
    assert sentence in text.render(training.trace, [], width=200)
    assert f"{join_units(sentence)}, 4.00\N{NO-BREAK SPACE}MiB reserved" in html.render(training.trace, [])
    device = json.loads(json_report.render(training.trace, []))["devices"][0]
    assert device["peak_source"] == "modelled"
    assert (device["peak_band"], device["peak_at_most_bytes"], device["peak_unsure"]) == (0.05, 5 << 20, "aten::topk")


def test_a_measured_peak_is_not_called_modelled(training):
    training.trace.facts["source"] = "measured"
    assert "3.00 MiB allocated, 4.00 MiB reserved" in text.render(training.trace, [])
