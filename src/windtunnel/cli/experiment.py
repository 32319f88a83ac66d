"""`windtunnel experiment`: the documents' exercises, on the GPUs that there are or on emulated ones."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click

from windtunnel import experiments, session, variables
from windtunnel.cli._options import experiment_gpus_option
from windtunnel.cli._paths import require_writable
from windtunnel.cli._progress import progress_of
from windtunnel.errors import UsageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
from windtunnel.experiments import Experiment, Result, _html, _text
from windtunnel.gpus import parse
from windtunnel.reports.text import is_coloured
from windtunnel.trace.plain import Json
from windtunnel.trace.units import format_share, plural

HOST = "reference"
"""What issues an experiment's work: its question is what a GPU does, and a slow host would hide that."""


@click.command("experiment")
@click.argument("name", default="list")
@experiment_gpus_option
@click.option("--report", "-o", "report", metavar="PATH.html", help="Write the result and its plots as a page.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.option("--small", is_flag=True, help="Small sizes, for a quick look.")
@click.option("--sizes", metavar="N,N,...", help="Your own sizes, where the experiment has sizes.")
@click.pass_context
def command(
    context: click.Context,
    name: str,
    gpus: str | None,
    report: str | None,
    as_json: bool,
    small: bool,
    sizes: str | None,
) -> int:
    """Run an experiment and say what its numbers show; `list` names them all.

    Without --gpus it runs on this machine's GPUs, or shows on the CPU as much as a CPU can. With --gpus the GPUs are
    emulated and their numbers modelled; the CPU's numbers are always measured.

    \b
    windtunnel experiment list
    windtunnel experiment matmul --gpus V100
    windtunnel experiment two-gpus --gpus 2xA100 --report two-gpus.html
    """
    if name == "list":
        click.echo(json.dumps(_listing(), indent=1) if as_json else _list())
        return 0
    name = name.replace("_", "-")
    experiments.find(name)
    if report is not None:
        _check_report(report)
    with progress_of(f"experiment {name}") as tell:
        numbers, listeners = count(1), import_module("windtunnel.experiments._measure").LISTENERS
        listeners.append(lambda: tell(plural(next(numbers), "measurement")))
        try:
            result = perform(name, gpus, small=small, sizes=None if sizes is None else _numbers(sizes))
        finally:
            listeners.clear()
    title = experiments.title(name)
    if report is not None:
        Path(report).write_text(_html.render(result, experiments.documentation(name)), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(result.as_dict(), indent=1, ensure_ascii=False))
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        click.echo(_text.render(result, title, width=width, color=is_coloured(sys.stdout)), nl=False)
    return 0


def perform(name: str, gpus: str | None = None, *, small: bool = False, sizes: Sequence[int] | None = None) -> Result:
    """The result of an experiment, each number's source in it.

    Args:
        name: the experiment's name.
        gpus: what to emulate, such as "2xV100"; the machine's own GPUs when None.
        small: whether to take the experiment's small sizes.
        sizes: sizes to take instead of its own.

    Raises:
        UsageError: there is no such experiment, it has no such sizes, or there are too few GPUs for it.
    """
    if variables.OPTIONS in os.environ:
        raise UsageError(
            "`windtunnel experiment` emulates GPUs of its own: run it without `windtunnel run`, with --gpus"
        )
    experiment = experiments.find(name)
    chosen = _chosen(name, experiment, small, sizes)
    before = getattr(experiment, "on_cpu", None)
    if gpus is None:
        _require(name, experiment, import_module("windtunnel.torch").num_gpus())
        result = experiment.run(chosen, before(chosen) if before else None)
        sources = dict.fromkeys(result.devices, "measured")
    else:
        _require(name, experiment, len(parse(gpus)))
        cpu = before(chosen) if before else None
        dataless: Json = {} if experiment.VALUES else {"no_data": True, "assume": 0.0}
        with session.emulate(gpus, host=HOST, **dataless) as emulated:
            result = experiment.run(chosen, cpu)
        band = emulated.trace.facts["band"]
        modelled = "modelled" if band is None else f"modelled, ±{format_share(band)} per kernel"
        sources = {origin: modelled if origin == "gpu" else "measured" for origin in result.devices}
    return replace(result, sources=sources, command=_command(name, gpus, small, sizes))


def _command(name: str, gpus: str | None, small: bool, sizes: Sequence[int] | None) -> str:
    words = ["windtunnel experiment", name]
    words += [f"--gpus {gpus}"] if gpus else []
    words += ["--small"] if small else []
    words += [f"--sizes {','.join(map(str, sizes))}"] if sizes else []
    return " ".join(words)


def _chosen(name: str, experiment: Experiment, small: bool, sizes: Sequence[int] | None) -> DataclassInstance:
    chosen = experiment.SMALL if small else experiment.SIZES
    if sizes is None:
        return chosen
    if "sizes" not in {field.name for field in fields(chosen)}:
        raise UsageError(f"the experiment {name} has no sizes to choose from: leave --sizes out")
    return replace(chosen, sizes=tuple(sizes))


def _require(name: str, experiment: Experiment, found: int) -> None:
    if found < experiment.GPUS:
        raise UsageError(
            f"the experiment {name} needs {plural(experiment.GPUS, 'GPU')}, and there {'is' if found == 1 else 'are'} "
            f"{found}: `windtunnel experiment {name} --gpus {experiment.GPUS}xV100` emulates them"
        )


def _numbers(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise UsageError(f"--sizes {text!r} is not a list of sizes: give whole numbers such as 256,1024,4096")
    return tuple(sorted({int(word) for word in words}))


def _check_report(path: str) -> None:
    if not path.endswith((".html", ".htm")):
        raise UsageError(
            f"an experiment's report is an HTML page: {path!r} must end in .html (--json gives the numbers)"
        )
    import_module("windtunnel.reports.parts.page").require()
    require_writable(Path(path))


def _listing() -> list[Json]:
    return [{"name": name, "title": experiments.title(name)} for name in experiments.names()]


def _list() -> str:
    width = max(map(len, experiments.names()))
    return "\n".join(f"{name:{width}}  {experiments.title(name)}" for name in experiments.names())
