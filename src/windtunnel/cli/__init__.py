"""The command line. Listing this folder is the registry: a module `name.py` with a `command` is `windtunnel name`."""

from __future__ import annotations

import difflib
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence

import click

from windtunnel import foreign, settings
from windtunnel.cli._exit_codes import table
from windtunnel.errors import WindtunnelError, torch_is_missing
from windtunnel.version import __version__

PROGRAM = "windtunnel"
WHOLE = 400  # characters: no summary of a command is cut
NAMES = tuple(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))


class Commands(click.Group):
    """Imports a command's module only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, sorted."""
        return sorted(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in NAMES:
            return None
        command: click.Command = importlib.import_module(f"{__name__}.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands with the whole first sentence of each."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(limit=WHOLE)) for name, one in commands if one is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The exit codes, and where the documentation is."""
        with formatter.section("Exit codes"):
            formatter.write_dl(table())
        formatter.write_paragraph()
        formatter.write_text(
            "`windtunnel explain pages` lists the documentation's pages, `windtunnel explain plan` prints one."
        )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say what the person may have meant."""
        name = args[0] if args else ""
        if name not in NAMES and (name.endswith(".py") or os.path.isfile(name)):
            ctx.fail(f"there is no command {name!r}; to run that program: windtunnel run {name}")
        if name and name not in NAMES and not name.startswith("-"):
            near = difflib.get_close_matches(name, NAMES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(self.list_commands(ctx))}"
            ctx.fail(f"there is no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda token: token.replace("_", "-"),
        "max_content_width": 100,
    },
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def group() -> None:
    """The wind tunnel for GPU programs: run, time, check and train CUDA code on a machine without a GPU."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code; bad input is one sentence on stderr and code 2."""
    sys.exit(_run(sys.argv[1:] if arguments is None else list(arguments)))


def _run(arguments: list[str]) -> int:
    try:
        defaults = settings.read()
        code = group.main(arguments, PROGRAM, standalone_mode=False, default_map=dict.fromkeys(NAMES, _keys(defaults)))
        return int(code or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        text = error.format_message()
        return _complain(f"{text[:1].lower()}{text[1:]}")
    except WindtunnelError as error:
        return _complain(str(error))
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return _complain(str(torch_is_missing()))
    except BrokenPipeError:
        _give_up_output()
        return 1
    except OSError as error:
        why = error.strerror or str(error)
        if not error.filename:
            _give_up_output()
        return _complain(f"{error.filename}: {why}" if error.filename else f"the output cannot be written: {why}")
    except (click.Abort, KeyboardInterrupt):
        return 130


def _give_up_output() -> None:
    """Let Python's own flush at the end find nothing to complain about."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _keys(values: dict[str, object]) -> dict[str, object]:
    """Settings as click's defaults: its names, and a list for what may be given several times."""
    lists = {name: [value] for name, value in values.items() if name in settings.LISTS and isinstance(value, str)}
    return {name.replace("-", "_"): value for name, value in {**values, **lists}.items()}


def _complain(text: str) -> int:
    click.echo(f"{PROGRAM}: {foreign.line(text)}", err=True)
    return 2
