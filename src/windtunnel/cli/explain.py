"""`windtunnel explain`: a check's page, in the terminal."""

from __future__ import annotations

import json
import sys

import click
from rich.console import Console
from rich.markdown import Markdown

from windtunnel import checks
from windtunnel.reports.schema import json_schema
from windtunnel.reports.text import is_coloured


@click.command("explain")
@click.argument("codes", nargs=-1, metavar="[CODE]...")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of `run --json` and `report --json` instead.")
def command(codes: tuple[str, ...], as_json: bool, schema: bool) -> None:
    """Say what a finding's code means, why it is bad and what to do instead; without a code, list all.

    \b
    windtunnel explain host-sync
    windtunnel explain pageable-copy idle-gpu
    """
    if schema:
        click.echo(json.dumps(json_schema(), indent=1))
        return
    found = [checks.select([code])[0] for code in codes] or list(checks.all_checks())
    if as_json:
        pages = [{"code": one.code, "severity": one.severity, "page": one.page()} for one in found]
        click.echo(json.dumps(pages, indent=1))
    elif codes:
        text = "\n\n".join(one.page().strip() for one in found)
        if is_coloured(sys.stdout):
            Console().print(Markdown(text))
        else:
            click.echo(text)
    else:
        width = max(len(one.code) for one in found)
        click.echo("\n".join(f"{one.code:{width}}  {one.severity:7}  {one.title()}" for one in found))
