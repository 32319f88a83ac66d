"""The registry: one check a file, named by its code, with a page in its docstring."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
from traces import Program

from windtunnel import checks
from windtunnel.errors import UsageError
from windtunnel.trace.finding import SEVERITIES
from windtunnel.trace.operation import Kind, Lane, Signature, Site

SECTIONS = ("## What it does", "## Why it is bad", "## Example", "## Use instead")


def test_each_check_is_one_file_with_a_page():
    def has_all_sections(check):
        positions = [inspect.getdoc(check).find(section) for section in SECTIONS]
        return -1 not in positions and positions == sorted(positions)

    every = checks.all_checks()
    assert not [c for c in every if c.__module__.rpartition(".")[2] != c.code.replace("-", "_")]
    assert not [c for c in every if c.severity not in SEVERITIES]
    assert not [c for c in every if not has_all_sections(c)]


def test_superseded_codes_exist():
    codes = {check.code for check in checks.all_checks()}
    assert set().union(*(check.supersedes for check in checks.all_checks())) <= codes


def test_an_unknown_code_is_named_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean host-sync"):
        checks.run(Program().trace, ["host-synch"])


def test_an_empty_trace_has_no_findings():
    assert checks.run(Program().trace) == []


def test_checks_need_no_torch():
    program = "import sys, windtunnel.checks as c; c.all_checks(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_run_may_be_asked_at_any_moment():
    program = Program()
    watching = checks.Run(["unsynchronized-access"])
    counts = []
    for line in (5, 15):
        program.hazard("unsynchronized-access", line, line + 2)
        watching.read(program.trace)
        counts.append(len(watching.findings(program.trace)))
    assert counts == [1, 2]


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        ("windtunnel: ignore[host-sync]", []),
        ("windtunnel: ignore[data-parallel, host-sync]", []),
        ("windtunnel: ignore[pageable-copy]", ["host-sync"]),
        ("windtunnel: ignore", ["host-sync"]),
    ],
)
def test_a_line_may_ask_to_be_left_alone_by_a_code(tmp_path, comment, left):
    script = tmp_path / "train.py"
    script.write_text(f"x = 1\nloss.item()  # {comment}\n")
    program = Program()
    site = Site(str(script), 2)
    for _ in range(30):
        program.kernel(ns=50_000)
        begin, program.now_ns = program.now_ns, program.now_ns + 60_000
        signature = Signature("aten::_local_scalar_dense")
        program.row(Kind.SYNCHRONIZE, Lane(0, 0), signature, site, begin, program.now_ns, 0)
    assert [finding.code for finding in checks.run(program.trace)] == left


@pytest.mark.parametrize(
    ("comment", "advised"), [("ignore", True), ("ignore[unsynchronised-access]", True), ("ignore[host-sync]", None)]
)
def test_an_ignore_that_names_no_code_is_told_how(program, tmp_path, comment, advised):
    path = tmp_path / "train.py"
    path.write_text(f"loss.item()  # windtunnel: {comment}\n", "utf-8")
    program.kernel()
    program.row(Kind.SYNCHRONIZE, Lane(0, 0), Signature("Tensor.tolist"), Site(str(path), 1), 0, 9, 0)
    found = checks.run(program.trace)
    said = [finding.advice.endswith("name it: `# windtunnel: ignore[host-sync]`") for finding in found]
    assert said == ([advised] if advised else [])
