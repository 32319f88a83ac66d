"""`windtunnel explain`: a check's page, or one of the documentation, in the terminal."""

from __future__ import annotations

import json
import sys

import click
from rich.console import Console
from rich.markdown import Markdown

from windtunnel import checks, manual
from windtunnel.cli._schemas import schema_of
from windtunnel.reports.text import is_coloured


@click.command("explain")
@click.argument("codes", nargs=-1, metavar="[CODE|PAGE]...")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of what a command prints with --json instead.")
def command(codes: tuple[str, ...], as_json: bool, schema: bool) -> None:
    """Say what a finding's code means, why it is bad and what to do instead; without a code, list all.

    A page of the documentation can be named as well: `pages` lists them, `skill` is for agents.

    \b
    windtunnel explain host-sync
    windtunnel explain pageable-copy idle-gpu
    windtunnel explain plan
    windtunnel explain --schema run
    """
    if schema:
        click.echo(json.dumps(schema_of(" ".join(codes) or "run"), indent=1))
        return
    if len(codes) == 1 and (text := manual.page(codes[0])) is not None:
        _show(text)
        return
    found = [checks.select([code])[0] for code in codes] or list(checks.all_checks())
    if as_json:
        pages = [{"code": one.code, "severity": one.severity, "page": one.page()} for one in found]
        click.echo(json.dumps(pages, indent=1))
    elif codes:
        _show("\n\n".join(one.page().strip() for one in found))
    else:
        width = max(len(one.code) for one in found)
        click.echo("\n".join(f"{one.code:{width}}  {one.severity:7}  {one.title()}" for one in found))


def _show(text: str) -> None:
    if is_coloured(sys.stdout):
        Console().print(Markdown(text))
    else:
        click.echo(text)
