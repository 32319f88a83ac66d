"""`windtunnel calibrate`: measure this machine's GPU, so that the cost model knows it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from windtunnel import hosts, variables
from windtunnel.cli._paths import require_writable
from windtunnel.cli._progress import progress_of
from windtunnel.errors import UsageError
from windtunnel.measure.present import visible_gpus
from windtunnel.trace.plain import Json


@click.command("calibrate")
@click.option("--output", "-o", "path", metavar="FILE", default="curves.toml", show_default=True, help="File to write.")
@click.option(
    "--host",
    "host_path",
    metavar="FILE",
    help="Write a file for --host instead, of this machine's processor; without a GPU of its Python alone.",
)
def command(path: str, host_path: str | None) -> int:
    """Measure this machine's GPU with CUDA events, in a few minutes, and save the results.

    The file holds the efficiency of kernels by class, size and precision, the rates of copies, and the host's time for
    launches and allocations. With `--curves FILE`, an emulation uses it for GPUs of that generation. Without a GPU the
    exit code is 2.

    \b
    windtunnel calibrate -o a100.toml
    windtunnel run --gpus A100 --curves a100.toml train.py
    """
    if host_path is not None:
        return _write_host(Path(host_path))
    folder = Path(path).resolve().parent
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{folder} cannot be written to: choose another place with --output")
    from windtunnel.measure import curves

    gpu = curves.this_gpu()
    how = "EMULATED" if variables.OPTIONS in os.environ else "measured"
    with progress_of(f"measuring {gpu.name}", len(curves.plans(gpu)) + 2) as tell:
        found = curves.measure(gpu, tell, how)
    Path(path).write_text(text(found), encoding="utf-8")
    click.echo(f"wrote {path}: use it with `windtunnel run --gpus {gpu.key} --curves {path} ...`", err=True)
    return 0


def _write_host(path: Path) -> int:
    require_writable(path)
    issue = None
    if visible_gpus():
        from windtunnel.measure import curves

        issue = curves.issue_factor()
    path.write_text(hosts.measured_here(issue), encoding="utf-8")
    click.echo(f"wrote {path}: use it with `windtunnel run --host {path} ...`", err=True)
    return 0


def text(found: Json) -> str:
    """The measurements as TOML."""
    lines = ["# Measured by `windtunnel calibrate`; `--curves` reads it.", f'gpu = "{found["gpu"]}"']
    lines.append(f'generation = "{found["generation"]}"')
    for name in ("dispatch_us", "driver", "links"):
        lines += ["", f"[{name}]", *(f"{key} = {value}" for key, value in found[name].items())]
    for row in found["curve"]:
        lines += ["", "[[curve]]"]
        lines += [f"{key} = " + (f'"{value}"' if isinstance(value, str) else str(value)) for key, value in row.items()]
    return "\n".join(lines) + "\n"
