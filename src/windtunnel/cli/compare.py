"""`windtunnel compare`: two runs side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from windtunnel import foreign
from windtunnel.analysis.compare import MOST_OPERATORS, Comparison, Difference, Numbers, compare, load, measure
from windtunnel.cli import _files
from windtunnel.measure import kineto
from windtunnel.trace.units import format_bytes, format_ns, format_share

DIFFERS = 1

ROWS = (
    ("time on the devices", "duration_ns"),
    ("median step", "step_ns"),
    ("busy share", "busy_share"),
    ("kernels", "kernels"),
    ("time in kernels", "kernel_ns"),
    ("copies", "copies"),
    ("bytes copied", "copied_bytes"),
    ("collectives", "collectives"),
    ("synchronizations", "synchronizations"),
    ("host waited", "wait_ns"),
    ("peak allocated", "peak_allocated_bytes"),
    ("peak reserved", "peak_reserved_bytes"),
    ("compiled graphs", "graphs"),
)


@click.command("compare")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="PERCENT",
    help="Ignore differences of up to this much of A's number.",
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(first: str, second: str, tolerance: float, as_json: bool) -> int:
    """Compare two runs: traces of `windtunnel run --trace`, JSON reports, or profiles of torch.profiler.

    The exit code is 0 when nothing differs by more than the tolerance, and 1 when something does.

    \b
    windtunnel compare before.trace after.trace --tolerance 2
    """
    result = compare(_numbers(first), _numbers(second), tolerance / 100)
    click.echo(json.dumps(result.to_json(), indent=1) if as_json else "\n".join(_lines(first, second, result)))
    return 0 if result.same else DIFFERS


def _numbers(path: str) -> Numbers:
    """The numbers of a JSON report of ours, or of a trace that anybody wrote."""
    head = foreign.read_bytes(path, 4096)
    return measure(_files.load(path)) if kineto.is_kineto(head) else load(path)


def _lines(first: str, second: str, result: Comparison) -> Iterator[str]:
    changed = {difference.name: difference for difference in result.differences}
    table = [("", "A", "B", "change")]
    for words, name in ROWS:
        one, other = getattr(result.first, name), getattr(result.second, name)
        if one or other:
            table.append((words, _show(name, one), _show(name, other), _change(changed.get(name))))
    for operator in _operators(result):
        one, other = (numbers.operators.get(operator.name, (0, 0))[1] for numbers in (result.first, result.second))
        table.append((operator.name, _show("_ns", one), _show("_ns", other), _change(operator)))
    yield f"A: {first} ({_gpus(result.first)})"
    yield f"B: {second} ({_gpus(result.second)})"
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    for row in table:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()
    yield from _compiling(result)
    yield "nothing differs" if result.same else f"{len(result.differences) + len(result.operators)} numbers differ"


def _compiling(result: Comparison) -> Iterator[str]:
    """What compiling has saved, where one run was compiled and the other was not."""
    if bool(result.first.graphs) == bool(result.second.graphs):
        return
    eager, compiled = sorted((result.first, result.second), key=lambda numbers: numbers.graphs)
    steps = eager.step_ns, compiled.step_ns
    before, after = steps if all(steps) else (eager.duration_ns, compiled.duration_ns)
    if before and after:
        of = "step" if all(steps) else "time on the devices"
        change = 100 * (after / before - 1)
        said = f"saves {-change:.1f} % of the {of}" if change < 0 else f"makes the {of} {change:.1f} % longer"
        peak = 100 * (compiled.peak_allocated_bytes / (eager.peak_allocated_bytes or 1) - 1)
        yield f"compiling {said} ({before / after:.2f} times as fast); peak allocated {peak:+.1f} %"


def _operators(result: Comparison) -> list[Difference]:
    if result.operators:
        return list(result.operators[:MOST_OPERATORS])
    top = sorted(result.first.operators.items(), key=lambda item: -item[1][1])[:MOST_OPERATORS]
    return [Difference(name, spent, spent, 0.0) for name, (_, spent) in top]


def _gpus(numbers: Numbers) -> str:
    return ", ".join(f"{numbers.gpus.count(name)} x {name}" for name in dict.fromkeys(numbers.gpus)) or "no GPU"


def _show(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name.endswith("_ns"):
        return format_ns(value)
    if name.endswith("_bytes"):
        return format_bytes(value)
    return format_share(value) if name == "busy_share" else f"{value:,.0f}"


def _change(difference: Difference | None) -> str:
    if difference is None or difference.change == 0.0:
        return "same"
    return "new" if difference.change is None else f"{100 * difference.change:+.1f} %"
