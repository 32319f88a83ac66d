"""`--help`: exit codes are those of the documentation's table, and no file is named that is not shipped."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from windtunnel.cli import NAMES, group
from windtunnel.cli._exit_codes import EXIT_CODES

ROOT = Path(__file__).parents[2]
FILES = re.compile(r"(?:docs|examples|tools|tests|src)/[\w./-]+|README|CONTRIBUTING")


def text_of(*words: str) -> str:
    done = CliRunner().invoke(group, [*words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_the_codes_are_those_of_the_table() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    section = page.partition("## Exit codes")[2].partition("\n## ")[0]
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)]
    assert codes == [code for code in EXIT_CODES if code != 130]  # 128+N of signal 2
    shown = text_of("--help").partition("Exit codes:")[2]
    assert [int(code) for code in re.findall(r"^  (\d+) ", shown, re.MULTILINE)] == list(EXIT_CODES)


@pytest.mark.parametrize("name", ["", *NAMES])
def test_no_file_is_named_that_is_not_shipped(name: str) -> None:
    assert not FILES.findall(text_of(*([name] if name else []), "--help"))


def test_all_options_name_none_either() -> None:
    assert not FILES.findall(text_of("run", "--help-all"))


@pytest.mark.parametrize("name", ["run", "plan", "compare", "verify", "memory", "retime", "kernel", "report"])
def test_a_command_with_codes_of_its_own_says_them(name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    assert re.search(r"exit\s+code|End with 64", text_of(name, "--help"))
