"""docs/command-line.md names every command, every option of `run` and every exit code of ours."""

from pathlib import Path

import click

from windtunnel import cli, shim
from windtunnel.cli import run

TEXT = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
OPTIONS = [option for option in run.command.params if isinstance(option, click.Option) and not option.hidden]


def test_every_command_is_documented() -> None:
    assert not [name for name in cli.NAMES if f"| `{name}` |" not in TEXT]


def test_every_option_is_documented() -> None:
    assert not [option.opts for option in OPTIONS if not any(name in TEXT for name in option.opts)]
    assert not [option.opts for option in OPTIONS if not option.help]


def test_exit_codes_are_documented() -> None:
    for code in (2, run.FINDING, shim.DOES_NOT_FIT, shim.REFUSED):
        assert f"\n| {code} | " in TEXT
