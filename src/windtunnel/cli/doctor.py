"""`windtunnel doctor`: what this machine has and lacks."""

from __future__ import annotations

import json

import click

from windtunnel.doctor import Line, diagnose

MARKS = {"ok": "ok", "absent": "-", "problem": "!"}
HOOKS = "PyTorch hook"


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
@click.option("-v", "--verbose", is_flag=True, help="List every private hook of PyTorch, not only those that fail.")
def command(as_json: bool, verbose: bool) -> None:
    """Check this machine: what it has, what is missing, and the command that fixes it."""
    lines = list(diagnose())
    if as_json:
        click.echo(json.dumps([line._asdict() for line in lines], indent=1))
        return
    shown = lines if verbose else _summarized(lines)
    width = max(len(line.subject) for line in shown) + 2
    for line in shown:
        click.echo(f"{MARKS[line.state]:3}{line.subject + ':':{width}}{line.text}")
        if line.advice:
            click.echo(f"{'':{3 + width}}-> {line.advice}")
    problems = sum(line.state == "problem" for line in lines)
    click.echo(f"\n{problems or 'no'} problem{'' if problems == 1 else 's'} found")


def _summarized(lines: list[Line]) -> list[Line]:
    """The same lines, with the hooks that are in order counted instead of named."""
    good = [line for line in lines if line.subject == HOOKS and line.state == "ok"]
    if not good:
        return lines
    counted = Line("PyTorch hooks", "ok", f"{len(good)} private hooks are as expected (-v names them)")
    return [counted if line is good[0] else line for line in lines if line is good[0] or line not in good]
