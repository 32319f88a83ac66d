"""`windtunnel retime`: a saved trace on other GPUs, without running the program again."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from windtunnel import gpus, networks, reports
from windtunnel.analysis.retime import does_not_fit, gpus_of, retime
from windtunnel.cli._files import load
from windtunnel.cli._options import verbose_option
from windtunnel.errors import UsageError
from windtunnel.gpus import variation
from windtunnel.judgement import judge
from windtunnel.ranks.fold import EVERY, Fold
from windtunnel.reports import json as json_report
from windtunnel.reports.parts import job
from windtunnel.reports.parts.time import measure
from windtunnel.reports.text import show
from windtunnel.trace.finding import Finding
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_bytes, format_ns

DOES_NOT_FIT = 65


@click.command("retime")
@click.argument("path", metavar="TRACE")
@click.option(
    "--gpu", "--gpus", "spec", metavar="SPEC", help="One GPU for all devices (H100), or one each.  [default: as it was]"
)
@click.option(
    "--network",
    metavar="NAME|FILE,...",
    help="What connects the nodes of a trace of several; of more than one a table is printed.",
)
@click.option(
    "--jitter", type=int, metavar="SEED", help="Let GPUs of one model differ, drawn by this seed.  [default: as it was]"
)
@click.option("--trace", "saved", metavar="PATH", help="Save the new trace.")
@click.option("--report", "-o", "outputs", metavar="PATH", multiple=True, help="Write a report instead of printing it.")
@verbose_option
@click.option("--json", "as_json", is_flag=True, help="The report as JSON on stdout.")
def command(
    path: str,
    spec: str | None,
    network: str | None,
    jitter: int | None,
    saved: str | None,
    outputs: tuple[str, ...],
    verbose: bool,
    as_json: bool,
) -> int:
    """Say how long a run saved as TRACE would take on other GPUs or another network: everything is priced again.

    The program does not run again, so what it would choose by the GPU (the precision, the batch size) stays as it was.
    The exit code is 65 when the memory that the run reserved is more than the new GPU has.

    \b
    windtunnel run --trace v100.trace train.py
    windtunnel retime v100.trace --gpu H100 --trace h100.trace
    windtunnel retime cluster.trace --network p5,roce-400,nccl-tests.txt --jitter 7
    windtunnel compare v100.trace h100.trace
    """
    for output in outputs:
        reports.find(output)
    if spec is None and network is None and jitter is None:
        raise UsageError("nothing to change: give --gpu, --jitter, or --network for a trace of several nodes")
    trace, models = load(path), gpus.parse(spec) if spec else ()
    given, paces = _networks(trace, network, models), _paces(trace, jitter)
    if len(given) > 1:
        if saved or outputs or as_json:
            raise UsageError("--trace, --report and --json are of one network: give one of --network")
        _table(trace, models, given, paces)
        return 0
    made = retime(trace, models, given[0] if given else None, paces)
    if jitter is not None:
        made.facts["jitter"] = jitter
    if "job" in made.facts:
        made.facts["job"] = job.retimed(made)
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


def _networks(trace: Trace, names: str | None, models: Sequence[gpus.Gpu]) -> list[networks.Network]:
    """The networks that were asked for."""
    if names is None:
        return []
    if int(trace.facts.get("nodes", 1)) < 2:
        raise UsageError("the trace is of one node, so no network is in it: leave out --network")
    key = models[0].key if models else gpus_of(trace)[0].key
    return [networks.find(name, key) for name in networks.parse(names)]


def _paces(trace: Trace, seed: int | None) -> list[float]:
    """How fast the kernels of the trace's devices are by a seed; empty where they are to be as they were."""
    if seed is None:
        return []
    facts, count = trace.facts, len(gpus_of(trace))
    ranks = int(facts.get("world_size") or count)
    whole = Fold(ranks, max(1, ranks // int(facts.get("nodes") or 1)), checked=EVERY)
    fold = Fold.from_json(facts["fold"]) if "fold" in facts else whole
    return [variation.pace(seed, numbers) for numbers in fold.gpus_of(int(facts.get("rank") or 0), count)]


def _table(trace: Trace, models: Sequence[gpus.Gpu], given: Sequence[networks.Network], paces: Sequence[float]) -> None:
    """A line for each network: the step, and what of it is communication between nodes that nothing hides."""
    width = max(len(one.key) for one in given)
    for one in given:
        made = retime(trace, models, one, paces)
        step_ns = measure(made).step_ns
        words = format_ns(step_ns) if step_ns else "no steps"
        exposed = job.retimed(made).get("exposed communication", "")
        click.echo(f"{one.key:{width}}  step {words}" + (f"; {exposed}" if exposed else ""))


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
