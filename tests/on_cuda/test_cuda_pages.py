"""The corpus's programs with CUDA kernels: no miss and no false alarm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "checks"))

from corpus import Page, pages

from windtunnel import emulate


@pytest.mark.parametrize("page", [page for page in pages() if page.cuda], ids=lambda page: page.path.stem)
def test_page(page: Page):
    code = compile(page.program, str(page.path), "exec")
    with emulate(page.gpus) as session:
        exec(code, {"__name__": "__main__", "__file__": str(page.path)})
    found = {
        (
            finding.code,
            finding.site.line if Path(finding.site.file).absolute() == page.path else finding.site,
            finding.severity != "info",
        )
        for finding in session.findings()
    }
    assert found == page.expected
