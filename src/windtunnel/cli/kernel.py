"""`windtunnel kernel`: one CUDA kernel alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import click

from windtunnel import gpus
from windtunnel.compiler import nvcc
from windtunnel.compiler.clang import CompileError
from windtunnel.single_kernel import Outcome, run

WRONG = 1


@click.command("kernel")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--launch", required=True, help="The launch: 'f<<<(256), (256)>>>(float[65536], 2.5, 65536)'.")
@click.option("--gpu", default="H100", show_default=True, help="The GPU.")
@click.option("--seed", default=0, show_default=True, help="Of the values, and of the order of warps and blocks.")
@click.option(
    "--check-kernels", "checks", type=click.Choice(["all", "sample", "none"]), default="all", show_default=True
)
@click.option("--schedule", "schedules", default=0, show_default=True, help="Other orders of warps and blocks to try.")
@click.option("--cuda-compiler", "compiler", type=click.Choice(["clang", "nvcc"]), default="clang", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout.")
def command(
    file: Path, launch: str, gpu: str, seed: int, checks: Literal["all", "sample", "none"], schedules: int,
    compiler: str, as_json: bool,
) -> int:  # fmt: skip
    """Compile, run, check and price one kernel of a .cu file alone.

    Arrays are written as `float[1024]` (random values), `float[1024]=0` (all the same) and `float[1024]=empty` (nobody
    wrote them). The exit code is 1 where something is wrong.

    \b
    windtunnel kernel saxpy.cu --launch 'saxpy<<<256, 256>>>(float[65536], float[65536], 2.5, 65536)'
    """
    own = nvcc.required() if compiler == "nvcc" else None
    try:
        outcome = run(
            file, launch, gpus.find(gpu), seed, checks, lambda text: click.echo(text, nl=False, err=as_json), schedules,
            own,
        )  # fmt: skip
    except CompileError as error:
        click.echo(str(error), err=True)
        return WRONG
    if as_json:
        click.echo(json.dumps(asdict(outcome), indent=1))
    else:
        click.echo("\n".join(_lines(outcome)))
    return WRONG if outcome.refused or outcome.error or outcome.faults else 0


def _lines(outcome: Outcome) -> list[str]:
    shape = f"<<<{_triple(outcome.grid)}, {_triple(outcome.block)}, {outcome.shared_bytes}>>>"
    lines = [f"{outcome.kernel} {shape} EMULATED on {outcome.gpu}"]
    if outcome.refused:
        return [*lines, f"refused  {outcome.refused}"]
    if outcome.time_ns is not None:
        band = f", within about ±{outcome.band:.0%}" if outcome.band is not None else ""
        lines.append(f"time     {outcome.time_ns / 1e3:.2f} µs (modelled{band})")
    counters = outcome.counters
    how = "by ptxas" if outcome.registers_known else "estimated"
    lines.append(
        f"memory   {counters['global_requests']} accesses of warps in {counters['global_sectors']} sectors; "
        f"shared: {counters['shared_requests']} in {counters['shared_wavefronts']} wavefronts"
    )
    lines.append(f"work     {_sum(counters['flops'])} operations, {_sum(counters['tensor_flops'])} on tensor cores, "
                 f"{counters['registers']} registers a thread ({how})")  # fmt: skip
    for array in outcome.arrays:
        if array["changed"]:
            lines.append(f"wrote    {array['name']}: {array['first']} ...")
    if outcome.error:
        lines.append(f"error    {outcome.error}")
    lines += [f"{fault['kind']}  {fault['file']}:{fault['line']}: {fault['message']}" for fault in outcome.faults]
    return lines if outcome.faults or outcome.error else [*lines, "checks   nothing found"]


def _triple(sizes: tuple[int, int, int]) -> str:
    return "(" + ", ".join(map(str, sizes)) + ")"


def _sum(values: object) -> int:
    return sum(values.values()) if isinstance(values, dict) else 0
