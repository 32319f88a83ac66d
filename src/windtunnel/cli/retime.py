"""`windtunnel retime`: a saved trace on other GPUs, without running the program again."""

from __future__ import annotations

import sys

import click

from windtunnel import gpus, reports
from windtunnel.analysis.retime import does_not_fit, retime
from windtunnel.cli._files import load
from windtunnel.cli._options import verbose_option
from windtunnel.judgement import judge
from windtunnel.reports import json as json_report
from windtunnel.reports.text import show
from windtunnel.trace.finding import Finding
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_bytes

DOES_NOT_FIT = 65


@click.command("retime")
@click.argument("path", metavar="TRACE")
@click.option(
    "--gpu", "--gpus", "spec", metavar="SPEC", required=True, help="One GPU for all devices (H100), or one each."
)
@click.option("--trace", "saved", metavar="PATH", help="Save the new trace.")
@click.option("--report", "-o", "outputs", metavar="PATH", multiple=True, help="Write a report instead of printing it.")
@verbose_option
@click.option("--json", "as_json", is_flag=True, help="The report as JSON on stdout.")
def command(path: str, spec: str, saved: str | None, outputs: tuple[str, ...], verbose: bool, as_json: bool) -> int:
    """Say how long a run saved as TRACE would take on another GPU: every kernel and copy is priced again.

    The program does not run again, so what it would choose by the GPU (the precision, the batch size) stays as it was.
    The exit code is 65 when the memory that the run reserved is more than the new GPU has.

    \b
    windtunnel run --trace v100.trace train.py
    windtunnel retime v100.trace --gpu H100 --trace h100.trace
    windtunnel compare v100.trace h100.trace
    """
    for output in outputs:
        reports.find(output)
    made = retime(load(path), gpus.parse(spec))
    small = does_not_fit(made)
    findings = [*_does_not_fit(made, small), *judge([made])]
    if saved is not None:
        made.save(saved)
    for output in outputs:
        reports.write(output, made, findings)
    if as_json:
        click.echo(json_report.render(made, findings), nl=False)
    elif not outputs:
        show(made, findings, sys.stdout, verbose)
    return DOES_NOT_FIT if small else 0


def _does_not_fit(trace: Trace, small: list[int]) -> list[Finding]:
    """An error for each device that has too little memory for what the run reserved."""
    found = []
    for index in small:
        device = trace.facts["devices"][index]
        needed = device.get("peak_reserved_bytes", 0) + device.get("context_bytes", 0)
        over = needed - device["memory_bytes"]
        found.append(
            Finding(
                "out-of-memory",
                "error",
                f"does not fit: {format_bytes(over)} over on cuda:{index}: the run reserved {format_bytes(needed)}, "
                f"context included; {trace.facts['gpus'][index]['name']} has {format_bytes(device['memory_bytes'])}",
                "take a GPU with more memory, or run with a smaller batch",
                size_bytes=over,
                device=index,
            )
        )
    return found
