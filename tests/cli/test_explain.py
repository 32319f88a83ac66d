"""`windtunnel explain`: every check's page in the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from windtunnel import checks
from windtunnel.cli import group
from windtunnel.errors import UsageError

PAGES = Path(__file__).parents[2] / "docs" / "checks"


def explain(*arguments: str) -> str:
    done = CliRunner().invoke(group, ["explain", *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_a_code_prints_the_page_of_the_documentation() -> None:
    pages = {check.code: (PAGES / f"{check.code}.md").read_text("utf-8").strip() for check in checks.all_checks()}
    assert not [code for code, page in pages.items() if explain(code).strip() != page]


def test_without_a_code_all_are_listed() -> None:
    lines = explain().splitlines()
    assert [line.split()[0] for line in lines] == [check.code for check in checks.all_checks()]


def test_json_holds_the_pages() -> None:
    (page,) = json.loads(explain("host-sync", "--json"))
    assert page["code"] == "host-sync"
    assert page["severity"] == "warning"
    assert page["page"].startswith("# host-sync\n")


def test_a_code_that_there_is_not_gets_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean host-sync"):
        CliRunner().invoke(group, ["explain", "host-synk"], catch_exceptions=False, standalone_mode=False)
