"""`windtunnel report`: show a saved trace again."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from windtunnel import reports
from windtunnel.checks._gates import parse_gates, refuse_undecidable, violations
from windtunnel.cli._files import load, load_dumps
from windtunnel.cli._options import verbose_option
from windtunnel.errors import UsageError
from windtunnel.judgement import judge
from windtunnel.reports import json as json_report
from windtunnel.reports.text import show
from windtunnel.trace.sources import collect, places
from windtunnel.trace.trace import Trace


@click.command("report")
@click.argument("paths", metavar="TRACE", nargs=-1, required=True)
@click.option("--report", "-o", "outputs", metavar="PATH", multiple=True, help="Write a report instead of printing it.")
@click.option(
    "--source", metavar="FOLDER", help="The program's folder, for the text of its lines where TRACE does not hold it."
)
@click.option("--fail-on", metavar="CODE[=N],...", multiple=True, help="End with 64 when such a finding occurs.")
@verbose_option
@click.option("--json", "as_json", is_flag=True, help="The report as JSON on stdout.")
def command(
    paths: tuple[str, ...],
    outputs: tuple[str, ...],
    source: str | None,
    fail_on: tuple[str, ...],
    verbose: bool,
    as_json: bool,
) -> int:
    """Look for findings in a TRACE saved by `windtunnel run --trace`, and show the report.

    A profile of torch.profiler (`.json`, `.json.gz`) and a memory snapshot of a real GPU can be given as well, and the
    dumps of NCCL's Flight Recorder, one a rank (`nccl_trace_rank_*`).
    """
    gates = parse_gates(fail_on)
    for output in outputs:
        reports.find(output)
    dumps = load_dumps(paths)
    if dumps is None and len(paths) > 1:
        raise UsageError(f"{paths[1]} is one file too many: only dumps of Flight Recorder can be given together")
    trace = load(paths[0]) if dumps is None else dumps
    if source is not None:
        _take_sources(trace, Path(source))
    refuse_undecidable(gates, trace.facts.get("not_decidable", ()), paths[0])
    findings = judge([trace])
    for output in outputs:
        reports.write(output, trace, findings)
    if as_json:
        click.echo(json_report.render(trace, findings), nl=False)
    elif not outputs:
        show(trace, findings, sys.stdout, verbose)
    broken = violations(gates, findings)
    for sentence in broken:
        click.echo(f"windtunnel: {sentence}", err=True)
    return 64 if broken else 0


def _take_sources(trace: Trace, folder: Path) -> None:
    """Take the lines that a trace names from a folder of the person's: from nowhere else, whatever the trace names."""
    if not folder.is_dir():
        raise UsageError(f"--source {folder} is not a folder: name the folder that contains the program")
    root = folder.resolve()
    for site in places(trace):
        path = (root / site.file).resolve() if site.file else root
        if path.is_file() and path.is_relative_to(root):
            collect(trace.sources, [site], str(root))
