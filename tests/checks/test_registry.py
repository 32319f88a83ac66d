"""The registry: one check a file, named by its code, with a page in its docstring."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
from traces import Program

from understudy import checks
from understudy.errors import UsageError
from understudy.trace.finding import SEVERITIES

SECTIONS = ("## What it does", "## Why it is bad", "## Example", "## Use instead")


@pytest.mark.parametrize("check", checks.all_checks(), ids=lambda check: check.code)
def test_each_check_is_one_file_with_a_page(check):
    assert check.__module__.rpartition(".")[2] == check.code.replace("-", "_")
    assert check.severity in SEVERITIES
    positions = [inspect.getdoc(check).find(section) for section in SECTIONS]
    assert -1 not in positions
    assert positions == sorted(positions)


def test_superseded_codes_exist():
    codes = {check.code for check in checks.all_checks()}
    assert set().union(*(check.supersedes for check in checks.all_checks())) <= codes


def test_an_unknown_code_is_named_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean host-sync"):
        checks.run(Program().trace, ["host-synch"])


def test_an_empty_trace_has_no_findings():
    assert checks.run(Program().trace) == []


def test_checks_need_no_torch():
    program = "import sys, understudy.checks as c; c.all_checks(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
