"""Every program of the corpus is run under emulation: no miss and no false alarm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from corpus import Page, pages

from windtunnel import checks, emulate
from windtunnel.trace.finding import Finding

CORPUS = list(pages())


@pytest.fixture
def restored_environment():
    """Programs may set variables; the next one starts with the old ones."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


ALONE = [page for page in CORPUS if page.ranks == 1 and not page.triton and not page.cuda]


@pytest.mark.parametrize("page", ALONE, ids=lambda page: page.path.stem)
@pytest.mark.usefixtures("restored_environment")
def test_page(page: Page):
    code = compile(page.program, str(page.path), "exec")
    with emulate(page.gpus, memory_history=page.history, host="reference") as session:
        exec(code, {"__name__": "__main__", "__file__": str(page.path)})
    assert {as_found(page, finding) for finding in session.findings()} == page.expected


def as_found(page: Page, finding: Finding) -> tuple[str, int | str, bool]:
    """A finding as the marks say it; one in another file keeps the file's name, so that it matches no mark."""
    line: int | str = finding.site.line
    if finding.site.file and Path(finding.site.file).resolve() != page.path:
        line = str(finding.site)
    return finding.code, line, finding.severity != "info"


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in CORPUS if page.ranks > 1], ids=lambda page: page.path.stem)
def test_page_of_several_ranks(page: Page, tmp_path: Path):
    program, report = tmp_path / "page.py", tmp_path / "report.json"
    program.write_text(page.program, "utf-8")
    options = ["--gpus", page.gpus, "--nproc-per-node", str(page.ranks), "--report", str(report), "-q"]
    subprocess.run(
        [sys.executable, "-m", "windtunnel", "run", "--host", "reference", *options, str(program)],
        check=True,
        timeout=600,
    )
    findings = json.loads(report.read_text("utf-8"))["findings"]
    assert {finding["file"] for finding in findings} <= {str(program), ""}
    found = {(finding["code"], finding["line"], finding["severity"] != "info") for finding in findings}
    assert found == page.expected


def test_marks_name_checks_that_exist():
    codes = {check.code for check in checks.all_checks()}
    assert {code for page in CORPUS for code, _, _ in page.expected} <= codes


def test_half_of_the_programs_are_valid():
    valid = sum(page.valid for page in CORPUS)
    assert len(CORPUS) >= 60
    assert 0.4 <= valid / len(CORPUS) <= 0.6
