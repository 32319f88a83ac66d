"""`windtunnel verify`: a program on this machine's own GPU and emulated, side by side."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from windtunnel import gpus, launch
from windtunnel.analysis import compare, shared_rows, verify
from windtunnel.analysis.shared_rows import Predicted, SharedRow
from windtunnel.analysis.verify import Outcome, Row
from windtunnel.cli.run import target_of
from windtunnel.errors import UsageError
from windtunnel.measure import present
from windtunnel.reports.parts import time
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Trace
from windtunnel.trace.units import format_share
from windtunnel.version import installed

DIFFERS = 1


@click.command("verify", context_settings={"allow_interspersed_args": False})
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="PERCENT",
    help="Ignore differences of up to this much of the GPU's number.",
)
@click.option("--gpus", "spec", metavar="SPEC", help="GPUs to emulate, if not this machine's own.")
@click.option("--cuda-version", metavar="VERSION", help="CUDA version to emulate, if not the program's own.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.option(
    "--share",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a row of times to FILE that you can send us: no paths, no names.",
)
@click.option("--stand-in", metavar="MODEL", hidden=True, help="An emulated GPU plays the real one: for tests.")
@click.option("-m", "--module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.option("-c", "--code", is_flag=True, help="PROGRAM is Python code, as in python -c.")
@click.argument("program", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(program: str | None, arguments: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Run PROGRAM on this machine's GPU and emulated, and list the differences.

    It compares the exit code and the error, the numbers that the program printed, the peaks of allocated and reserved
    memory, the number, time and order of its kernels, and the time of a step (without steps, of the run). The
    exit code is 1 when something differs by more than the tolerance, 2 without a GPU. The program's own output is not
    shown.

    \b
    windtunnel verify train.py --epochs 1
    windtunnel verify --tolerance 5 --json -m package.train
    """
    target = target_of(program, arguments, options | {"no_python": False})
    launch.require_framework(target)
    tolerance = float(options["tolerance"]) / 100
    stand_in = options["stand_in"]
    spec = options["spec"] or stand_in or _present()
    gpus.parse(spec)
    native, real = _run(target, None if stand_in is None else {"gpus": stand_in}, options["cuda_version"])
    version = options["cuda_version"] or _version(real)
    emulated, modelled = _run(target, {"gpus": spec}, version)
    if options["share"] is not None:
        _share(options["share"], target, spec, real, modelled, stand_in is not None)
    rows = verify.compare(native, emulated, tolerance)
    if as_json:
        click.echo(json.dumps(verify.to_json(rows, tolerance), indent=1))
    else:
        click.echo("\n".join(_lines(rows, spec, stand_in)))
    return 0 if all(row.same for row in rows) else DIFFERS


def _present() -> str:
    """The GPUs of this machine by the names of the catalogue, as `--gpus` takes them.

    Raises:
        UsageError: there is none, or one that the catalogue lacks.
    """
    models = present.visible_models()
    if not models:
        raise UsageError(
            "verify compares with a real NVIDIA GPU, and this machine has none: run it on a machine with one"
        )
    keys = []
    for name, size in models:
        known = [gpu for gpu in map(gpus.find, gpus.names()) if gpu.name == name]
        if not known:
            raise UsageError(f"there is no data for {name!r}: name a similar GPU with --gpus, or add its `.toml` file")
        keys.append(min(known, key=lambda gpu: abs(gpu.memory_bytes - size)).key)
    return ",".join(keys)


def _run(target: launch.Program, emulation: Json | None, version: str | None) -> tuple[Outcome, Trace | None]:
    """One side, and its trace; no emulation stands for this machine's own GPUs."""
    with tempfile.TemporaryDirectory(prefix="windtunnel-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        records = folder / "records"
        records.mkdir()
        with launch.guarded(records), open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
            launch.prepare(records)
            if emulation is None:
                variables = launch.measuring_environment(records, os.environ)
            else:
                chosen = emulation | ({"cuda_version": version} if version else {})
                variables = launch.environment(chosen, records, os.environ)
            code = launch.run(target.command(), variables, out, err).code
            result = launch.collect(records)
        printed, errors = ((folder / file).read_text(encoding="utf-8", errors="replace") for file in ("out", "err"))
        trace = result.traces[0] if result.traces else None
        return verify.outcome(code, printed, errors, trace), trace


def _share(
    path: Path, target: launch.Program, spec: str, real: Trace | None, modelled: Trace | None, stand_in: bool
) -> None:
    """Write the row of a run.

    Raises:
        UsageError: there is nothing to share.
    """
    text = _text(target)
    if real is None or modelled is None:
        raise UsageError("--share needs a program that runs on a GPU: one of the two runs left no trace")
    models = gpus.parse(spec)
    numbers, lengths = compare.measure_with_steps(real)
    timing = time.measure(modelled)
    range_ns = timing.step_range_ns(modelled.facts.get("band"))
    said = compare.measure(modelled)
    predicted_ms = (said.step_ns or said.duration_ns) / 1e6
    if not predicted_ms or not numbers.duration_ns:
        raise UsageError("--share needs a program that runs on a GPU: one of the two runs has no kernels")
    shared_rows.write(
        SharedRow(
            shared_rows.FORMAT,
            shared_rows.program_of(text),
            models[0].key,
            len(models),
            present.driver_version(),
            _version(real) or "",
            {name: found for name in ("torch", "windtunnel") if (found := installed(name))}
            | {"python": platform.python_version()},
            _processor(),
            stand_in,
            shared_rows.measured(lengths, numbers.duration_ns),
            Predicted(predicted_ms, None if range_ns is None else (range_ns[0] / 1e6, range_ns[1] / 1e6)),
        ),
        path,
    )


def _text(target: launch.Program) -> bytes:
    """What names the program in a row: its text, or the module's name."""
    if target.kind == "script":
        return Path(target.name).read_bytes()
    return target.name.encode()


def _processor() -> str:
    """The model of the host's processor, as Linux names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _version(trace: Trace | None) -> str | None:
    found = None if trace is None else trace.facts.get("cuda_version")
    return ".".join(map(str, found)) if isinstance(found, list) else None


def _lines(rows: list[Row], spec: str, stand_in: str | None) -> Iterator[str]:
    yield f"native: {'this machine' if stand_in is None else f'EMULATED {stand_in} stands in'}; emulated: {spec}"
    table = [("", "native", "emulated", "difference")]
    for row in rows:
        amount = "" if row.difference is None else format_share(row.difference)
        table.append((row.name, row.native, row.emulated, "same" if row.difference == 0 else amount or _words(row)))
    widths = [max(len(line[column]) for line in table) for column in range(4)]
    marks = ["", *("" if row.same else "  DIFFERS" for row in rows)]
    for line, mark in zip(table, marks, strict=True):
        cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        yield "  ".join([line[0].ljust(widths[0]), *cells[1:]]).rstrip() + mark
    different = [row.name for row in rows if not row.same]
    yield f"differs: {', '.join(different)}" if different else "nothing differs by more than the tolerance"


def _words(row: Row) -> str:
    return "same" if row.same else "not the same"
