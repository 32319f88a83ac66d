"""`understudy report`: show a saved trace again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from understudy import checks, reports
from understudy.checks._gates import parse_gates, violations
from understudy.errors import FileFormatError
from understudy.reports import json as json_report
from understudy.reports.text import show
from understudy.trace.trace import Trace


@click.command("report")
@click.argument("path", metavar="TRACE")
@click.option("--report", "-o", "outputs", metavar="PATH", multiple=True, help="Write a report instead of printing it.")
@click.option("--fail-on", metavar="CODE[=N],...", multiple=True, help="End with 64 when such a finding occurs.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON on stdout.")
def command(path: str, outputs: tuple[str, ...], fail_on: tuple[str, ...], as_json: bool) -> int:
    """Look for findings in a TRACE saved by `understudy run --trace`, and show the report."""
    gates = parse_gates(fail_on)
    for output in outputs:
        reports.find(output)
    trace = _load(path)
    findings = checks.run(trace)
    for output in outputs:
        reports.write(output, trace, findings)
    if as_json:
        click.echo(json_report.render(trace, findings), nl=False)
    elif not outputs:
        show(trace, findings, sys.stdout)
    broken = violations(gates, findings)
    for sentence in broken:
        click.echo(f"understudy: {sentence}", err=True)
    return 64 if broken else 0


def _load(path: str) -> Trace:
    try:
        return Trace.load(Path(path))
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise FileFormatError(f"{path} is damaged: {error}; write it again with `understudy run --trace`") from error
