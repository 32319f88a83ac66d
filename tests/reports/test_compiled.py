"""What reports and comparisons say of compiled programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from traces import Program

from windtunnel.cli.compare import command
from windtunnel.reports import brief, html, text
from windtunnel.reports import json as json_report
from windtunnel.reports.parts.summary import summarize
from windtunnel.trace.operation import Note, Site
from windtunnel.trace.trace import Trace

LINE = Site("train.py", 12)


def graph(operators: int, kernels: int, generated: int, nodes: int) -> Note:
    detail = (("operators", operators), ("kernels", kernels), ("generated", generated), ("nodes", nodes))
    return Note("compiled-graph", LINE, detail)


def compiled(training: Program) -> Trace:
    trace = training.trace
    for note in (graph(40, 12, 8, 20), graph(60, 16, 9, 31), Note("graph-break", LINE), Note("recompile", LINE)):
        trace.remark(note)
    return trace


def test_a_report_counts_graphs_kernels_and_what_they_fuse(training: Program) -> None:
    trace = compiled(training)
    words = "2 of 100 operators: 17 kernels generated from 51 nodes, 11 calls of libraries; 1 graph break"
    assert words in text.render(trace, [], width=200)
    assert "compiling took" not in text.render(trace, [], width=200)
    assert words in html.render(trace, [])
    found = json_report.as_dict(trace, [])["compiled"]
    assert (len(found["graphs"]), found["breaks"], found["recompiled"]) == (2, 1, 1)
    assert found["graphs"][1]["nodes"] == 31
    short = "graphs  2 compiled graphs, 17 kernels from 51 nodes, 1 break"
    assert short in brief.lines(summarize(trace, []), 80)


def test_compile_time_is_said_and_kept_out_of_files(training: Program, tmp_path: Path) -> None:
    trace = compiled(training)
    trace.save(tmp_path / "before.gz")
    trace.facts["compile_ns"] = 12_300_000_000
    assert "compiling took: 12.3 s on this machine" in text.render(trace, [], width=200)
    assert "12.3 s" in brief.graphs(summarize(trace, []))
    trace.save(tmp_path / "after.gz")
    assert (tmp_path / "after.gz").read_bytes() == (tmp_path / "before.gz").read_bytes()


def test_a_program_that_compiled_nothing_says_nothing_of_it(training: Program) -> None:
    assert "graphs" not in text.render(training.trace, [])
    assert json_report.as_dict(training.trace, [])["compiled"] is None


@pytest.mark.parametrize(("kernel_ns", "said"), [(15_000, "compiling saves"), (60_000, "compiling makes the step")])
def test_a_comparison_says_what_compiling_saves(training: Program, tmp_path: Path, kernel_ns: int, said: str) -> None:
    eager, other = tmp_path / "eager.gz", tmp_path / "compiled.gz"
    training.trace.save(eager)
    program = Program(gpus=2)
    for number in range(10):
        for _ in range(8):
            program.kernel("triton_poi_fused", ns=kernel_ns, line=12)
        program.item(line=15).step(number, line=14)
    program.trace.facts["devices"] = training.trace.facts["devices"]
    compiled(program).save(other)
    for pair in ((eager, other), (other, eager)):
        lines = CliRunner().invoke(command, list(map(str, pair))).output.splitlines()
        (line,) = [line for line in lines if line.startswith("compiling")]
        assert line.startswith(said)
    assert "compiling" not in CliRunner().invoke(command, [str(eager), str(eager)]).output
