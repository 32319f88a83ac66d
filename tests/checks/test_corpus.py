"""Every program of the corpus is run under emulation: no miss and no false alarm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from corpus import Page, pages

from understudy import checks, emulate
from understudy.trace.finding import Finding

CORPUS = list(pages())


@pytest.fixture
def restored_environment():
    """Programs may set variables; the next one starts with the old ones."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize("page", CORPUS, ids=lambda page: page.path.stem)
@pytest.mark.usefixtures("restored_environment")
def test_page(page: Page):
    code = compile(page.program, str(page.path), "exec")
    with emulate(page.gpus) as session:
        exec(code, {"__name__": "__main__", "__file__": str(page.path)})
    assert {as_found(page, finding) for finding in session.findings()} == page.expected


def as_found(page: Page, finding: Finding) -> tuple[str, int | str, bool]:
    """A finding as the marks say it; one in another file keeps the file's name, so that it matches no mark."""
    line: int | str = finding.site.line
    if finding.site.file and Path(finding.site.file).resolve() != page.path:
        line = str(finding.site)
    return finding.code, line, finding.severity != "info"


def test_marks_name_checks_that_exist():
    codes = {check.code for check in checks.all_checks()}
    assert {code for page in CORPUS for code, _, _ in page.expected} <= codes


def test_half_of_the_programs_are_valid():
    valid = sum(page.valid for page in CORPUS)
    assert len(CORPUS) >= 30
    assert 0.4 <= valid / len(CORPUS) <= 0.6
