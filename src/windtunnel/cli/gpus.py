"""`windtunnel gpus`: the catalogue."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict

import click

from windtunnel import gpus
from windtunnel.gpus import Gpu

DISPENSABLE = ("aliases", "generation", "SMs", "capability", "FP16")  # left out first where a terminal is narrow


@click.command("gpus")
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def command(names: tuple[str, ...], as_json: bool) -> None:
    """List the GPUs that can be emulated, by memory, or all facts about those that are named, with sources.

    A name may also be the path of a `.toml` file that describes a GPU of your own, with the fields that --json shows.
    """
    found = [gpus.find(name) for name in names or gpus.names()]
    if not names:
        found.sort(key=lambda gpu: (gpu.memory_bytes, gpu.key))
    if as_json:
        click.echo(json.dumps([asdict(gpu) for gpu in found], indent=1))
    elif names:
        click.echo("\n\n".join(_facts(gpu) for gpu in found))
    else:
        click.echo(_table(found, shutil.get_terminal_size((sys.maxsize, 24)).columns))


def _table(found: list[Gpu], width: int) -> str:
    """The table, without the columns of `DISPENSABLE` that do not fit into `width`."""
    rows = [("name", "generation", "capability", "SMs", "memory", "bandwidth", "FP32", "FP16", "aliases")]
    rows += [
        (
            gpu.key,
            gpu.generation,
            ".".join(map(str, gpu.compute_capability)),
            str(gpu.sm_count),
            f"{gpu.memory_bytes / 2**30:.1f} GiB",
            f"{gpu.memory_bandwidth_bytes_per_s / 1e9:.0f} GB/s",
            _teraflops(gpu, "fp32"),
            _teraflops(gpu, "fp16"),
            ", ".join(gpu.aliases),
        )
        for gpu in found
    ]
    widths = {name: max(len(row[column]) for row in rows) for column, name in enumerate(rows[0])}
    shown = list(rows[0])
    for name in DISPENSABLE:
        if sum(widths[one] + 2 for one in shown) - 2 > width:
            shown.remove(name)
    columns = [rows[0].index(name) for name in shown]
    return "\n".join(
        "  ".join(row[column].ljust(widths[rows[0][column]]) for column in columns).rstrip() for row in rows
    )


def _teraflops(gpu: Gpu, kind: str) -> str:
    peak = gpu.peak_flops.get(kind)
    return "-" if peak is None else f"{peak / 1e12:.1f} TFLOPS"


def _facts(gpu: Gpu) -> str:
    lines = [gpu.key]
    for name, value in asdict(gpu).items():
        if name in ("key", "sources"):
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{key} {number:g}" for key, number in value.items())
        elif isinstance(value, tuple):
            value = ", ".join(map(str, value))
        source = gpu.sources.get(name)
        lines.append(f"  {name} = {value}" + (f"   [{source}]" if source else ""))
    return "\n".join(lines)
