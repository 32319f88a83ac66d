"""docs/command-line.md names every command, every option of `run` and every exit code of ours."""

from pathlib import Path

import click
import pytest

from windtunnel import cli, shim
from windtunnel.cli import run

TEXT = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
OPTIONS = [option for option in run.command.params if isinstance(option, click.Option) and not option.hidden]


@pytest.mark.parametrize("name", cli.NAMES)
def test_a_command_is_documented(name: str) -> None:
    assert f"| `{name}` |" in TEXT


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.opts[-1])
def test_an_option_is_documented(option: click.Option) -> None:
    assert any(name in TEXT for name in option.opts)
    assert option.help


def test_exit_codes_are_documented() -> None:
    for code in (2, run.FINDING, shim.DOES_NOT_FIT, shim.REFUSED):
        assert f"\n| {code} | " in TEXT
