"""`understudy retime`: a saved trace on other GPUs, without running the program again."""

from __future__ import annotations

import sys

import click

from understudy import gpus, reports
from understudy.analysis.retime import does_not_fit, retime
from understudy.cli._files import load
from understudy.judgement import judge
from understudy.reports import json as json_report
from understudy.reports.text import show

DOES_NOT_FIT = 65


@click.command("retime")
@click.argument("path", metavar="TRACE")
@click.option(
    "--gpu", "--gpus", "spec", metavar="SPEC", required=True, help="One GPU for all devices (H100), or one each."
)
@click.option("--trace", "saved", metavar="PATH", help="Save the new trace.")
@click.option("--report", "-o", "outputs", metavar="PATH", multiple=True, help="Write a report instead of printing it.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON on stdout.")
def command(path: str, spec: str, saved: str | None, outputs: tuple[str, ...], as_json: bool) -> int:
    """Say how long a run saved as TRACE would take on another GPU: every kernel and copy is priced again.

    The program does not run again, so what it would choose by the GPU (the precision, the batch size) stays as it was.
    The exit code is 65 when the memory that the run reserved is more than the new GPU has.

    \b
    understudy run --trace v100.trace train.py
    understudy retime v100.trace --gpu H100 --trace h100.trace
    understudy compare v100.trace h100.trace
    """
    for output in outputs:
        reports.find(output)
    made = retime(load(path), gpus.parse(spec))
    findings = judge([made])
    if saved is not None:
        made.save(saved)
    for output in outputs:
        reports.write(output, made, findings)
    if as_json:
        click.echo(json_report.render(made, findings), nl=False)
    elif not outputs:
        show(made, findings, sys.stdout)
    small = does_not_fit(made)
    for index in small:
        click.echo(f"understudy: what this run reserved on device {index} does not fit on {spec}", err=True)
    return DOES_NOT_FIT if small else 0
