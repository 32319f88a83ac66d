"""`windtunnel plan`: which GPU, batch and layout fits, how long a program takes there, and what it costs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from windtunnel import launch, planning
from windtunnel.cli._options import (
    assume_option,
    cuda_version_option,
    curves_option,
    host_option,
    kernels_option,
    network_option,
    seed_option,
)
from windtunnel.cli._paths import require_writable
from windtunnel.cli._progress import Progress
from windtunnel.errors import UsageError, renamed
from windtunnel.planning import formats
from windtunnel.planning.cache import default_folder, former_folder
from windtunnel.planning.planner import Question
from windtunnel.planning.pools import BACKENDS
from windtunnel.planning.rows import GOALS, Work, parse_prices
from windtunnel.planning.space import parse_axis, parse_largest
from windtunnel.planning.table import render_json, render_text
from windtunnel.reports.text import is_coloured

NOTHING_FITS = 1


@click.command(
    "plan",
    epilog="The program's own arguments come after `--`. The exit code is 0 when some candidate fits, 1 when none "
    "does, 130 after Ctrl-C, which keeps what is done.",
)
@click.option(
    "--gpus",
    metavar="SPEC,SPEC,...",
    multiple=True,
    envvar="WINDTUNNEL_GPUS",
    help="The GPUs to choose from: T4,L4,A100,8xA100. With several in one, the program runs as a rank on each.",
)
@click.option(
    "--cluster",
    metavar="NODESxGPUSxMODEL,...",
    multiple=True,
    envvar="WINDTUNNEL_CLUSTER",
    help="Clusters to choose from: 8x8xH100,16x8xA100. A few processes stand for all ranks.",
)
@network_option
@click.option(
    "--vary",
    metavar="NAME=VALUE,...",
    multiple=True,
    help="Try each value of an option of the program (--vary=--batch-size=8,16), of an environment variable, of an "
    "override key=value or of a JSON file's value; may be given several times.",
)
@click.option(
    "--largest",
    metavar="NAME[=LOW..HIGH[:STEP]]",
    help="Look for the largest value of an integer option that fits with a margin.  [default: from 1 to 4096]",
)
@click.option("--price", metavar="GPU=PRICE", multiple=True, help="What one GPU costs an hour: H100=2.49.")
@click.option(
    "--steps", type=click.IntRange(min=1), metavar="N", help="A whole run's optimizer steps, for hours and cost."
)
@click.option("--samples", type=click.IntRange(min=1), metavar="N", help="Instead: a whole run's samples.")
@click.option(
    "--goal", type=click.Choice(GOALS), help="What to sort by.  [default: cheapest with --price, else fastest]"
)
@click.option(
    "--nproc-per-node",
    metavar="N|gpu",
    help="Ranks to start: a number, or gpu for one per GPU.  [default: gpu where a SPEC has several]",
)
@click.option("--backend", type=click.Choice(BACKENDS), default="local", help="Where rehearsals run.  [default: local]")
@click.option("--scheduler", metavar="ADDRESS", help="The cluster's address; without it one is started here.")
@click.option("--jobs", "-j", type=click.IntRange(min=1), metavar="N", help="Rehearsals at once.  [default: cores]")
@click.option(
    "--rehearse",
    type=click.IntRange(min=1),
    default=3,
    metavar="STEPS",
    help="Optimizer steps after which a rehearsal ends.  [default: 3]",
)
@click.option("--to-the-end", is_flag=True, help="Run the program to its end instead.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=900.0,
    metavar="SECONDS",
    help="For one rehearsal.  [default: 900]",
)
@click.option("--suggest", is_flag=True, help="Also try settings and changes of the program that may help.")
@click.option("--fresh", is_flag=True, help="Ignore cached rehearsals.")
@click.option(
    "--report", metavar="PATH", multiple=True, help="Write the plan: .html, .md or .json; may be given several times."
)
@click.option("--json", "as_json", is_flag=True, help="The plan as JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@cuda_version_option
@seed_option
@assume_option
@curves_option
@host_option
@kernels_option
@click.option("-m", "--module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(program: str, arguments: tuple[str, ...], **options: Any) -> int:
    """Rehearse PROGRAM, unchanged and without data, on each GPU, and recommend one.

    \b
    windtunnel plan train.py --gpus T4,L4,RTX4090,A100,H100 --largest=--batch-size
    windtunnel plan train.py --gpus A100,8xA100 --vary=--batch-size=8,16 --price A100=1.29 --steps 20000
    windtunnel plan train.py --cluster 8x8xH100,16x8xA100 --vary=--tp=2,4,8 --price H100=2.49,A100=1.29
    """
    for path in options["report"]:
        formats.find(path)
        require_writable(Path(path))
    question = _question(program, arguments, options)
    launch.require_framework(question.program)
    work = Work(options["steps"], options["samples"], parse_prices(options["price"]), options["goal"])
    if (former := former_folder()) is not None:
        click.echo(f"windtunnel: {renamed(f'the plan cache {former}', 'it is not read, and can be removed')}", err=True)
    with Progress(question, work, quiet=options["quiet"]) as progress:
        made = planning.make(
            question,
            work,
            backend=options["backend"],
            scheduler=options["scheduler"],
            jobs=options["jobs"],
            folder=default_folder(),
            fresh=options["fresh"],
            suggest=options["suggest"],
            progress=progress.show,
        )
    for path in options["report"]:
        formats.write(path, made)
    if options["as_json"]:
        click.echo(render_json(made), nl=False)
    else:
        width = shutil.get_terminal_size((140, 24)).columns
        click.echo(render_text(made, width=width, color=is_coloured(sys.stdout)), nl=False)
    if made.interrupted:
        return 130
    return 0 if made.best is not None else NOTHING_FITS


def _question(program: str, arguments: tuple[str, ...], options: dict[str, Any]) -> Question:
    if not options["module"] and not os.path.isfile(program):
        raise UsageError(f"there is no file {program!r} to rehearse; check the path (-m rehearses a module)")
    specs = planning.specs_of(options["gpus"], options["cluster"])
    emulation = {
        name: options[name]
        for name in ("cuda_version", "seed", "assume", "curves", "host", "network", "kernels")
        if options[name] not in (None, ())
    }
    return Question(
        launch.Program("module" if options["module"] else "script", program, arguments),
        specs,
        tuple(parse_axis(text) for text in options["vary"]),
        None if options["largest"] is None else parse_largest(options["largest"]),
        emulation,
        planning.ranks_of(options["nproc_per_node"], specs),
        None if options["to_the_end"] else options["rehearse"],
        timeout_s=options["timeout"],
    )
