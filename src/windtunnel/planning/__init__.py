"""Plans: which GPU, batch and layout fit a program, how long it takes there and what it costs, by many rehearsals.

    space         what varies, and a program with a choice applied
    layout        a candidate's GPUs: of a machine, or of a cluster's
    rehearsal     one rehearsal without data: a job in, a measurement out
    measurement   the numbers of a rehearsal
    cache         finished rehearsals
    forkservers   the program's libraries, imported once for many rehearsals
    pools         where rehearsals run: this machine, Dask, Ray
    demand        whether a candidate fits, and which rehearsal decides that
    search        the largest value that fits
    suggest       what else would help
    planner       which rehearsals are needed, and which are not
    rows, result  rows with time, cost and command; the recommendation
    table, page   the plan as text, Markdown, JSON; as HTML

It is called `planning` because `windtunnel.plan` is the function.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from windtunnel import gpus as catalogue
from windtunnel.errors import UsageError
from windtunnel.launch import Program
from windtunnel.planning import layout
from windtunnel.planning.cache import Cache, default_folder
from windtunnel.planning.demand import DOES_NOT_FIT
from windtunnel.planning.planner import Answer, Planner, Question
from windtunnel.planning.pools import Pool, open_pool
from windtunnel.planning.result import Plan, named
from windtunnel.planning.rows import GOALS, Row, Work, parse_prices, rows_of
from windtunnel.planning.space import parse_axis, parse_largest
from windtunnel.planning.suggest import suggestions
from windtunnel.ranks import fold


def plan(
    program: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    gpus: str | Sequence[str] = (),
    cluster: str | Sequence[str] = (),
    vary: str | Sequence[str] = (),
    largest: str | None = None,
    price: Mapping[str, float] | None = None,
    steps: int | None = None,
    samples: int | None = None,
    goal: str | None = None,
    nproc_per_node: int | str | None = None,
    jobs: int | None = None,
    backend: str = "local",
    scheduler: str | None = None,
    cache: bool = True,
    **options: object,
) -> list[Row]:
    """Rehearse a script without data on each of several GPUs, and predict its memory, time and cost there.

    The same as `windtunnel plan`, and with the same options, which docs/plan.md describes.

    Args:
        program: the script.
        arguments: its own arguments.
        gpus: the GPUs to choose from: "T4,L4,8xA100", or a list of such texts.
        cluster: clusters to choose from: "8x8xH100,16x8xA100", or a list of such texts.
        vary: what varies, one or more of "--batch-size=8,16" or "VARIABLE=one,other".
        largest: an integer option whose largest value that fits is searched for: "--batch-size=1..512".
        price: the price of one GPU per hour, by GPU name.
        steps, samples: the length of a whole run, from which hours and cost follow.
        goal: "cheapest" or "fastest".
        nproc_per_node: ranks that torchrun's agent starts: a number, or "gpu" for one per GPU.
        jobs: how many rehearsals run at once.
        backend, scheduler: "local", "dask" or "ray", and the address of the cluster.
        cache: whether finished rehearsals are cached and reused.
        options: fields of `windtunnel.Options` for every rehearsal.

    Returns:
        The rows, best first by the goal; candidates that do not fit come last.

    Raises:
        UsageError: an argument is not valid.
    """
    specs = specs_of(gpus, cluster)
    question = Question(
        Program("script", os.fspath(program), tuple(arguments)),
        specs,
        tuple(parse_axis(text) for text in ([vary] if isinstance(vary, str) else vary)),
        None if largest is None else parse_largest(largest),
        options,
        ranks_of(nproc_per_node, specs),
    )
    prices = parse_prices([f"{name}={value}" for name, value in (price or {}).items()])
    made = make(question, Work(steps, samples, prices, goal), backend=backend, scheduler=scheduler, jobs=jobs,
                folder=default_folder() if cache else None)  # fmt: skip
    return made.rows


def specs_of(gpus: str | Sequence[str], clusters: str | Sequence[str] = ()) -> tuple[str, ...]:
    """The alternatives of "T4,L4,8xA100" and of "64x8xH100", or of several such texts, each once.

    Raises:
        UsageError: one of them is not the name of a GPU or a cluster of them, or there is none.
    """
    machines, several = _parts(gpus), _parts(clusters)
    for spec in machines:
        if layout.is_cluster(spec):
            raise UsageError(f"{spec} is a cluster: give it by --cluster {spec}")
        catalogue.parse(spec)
    for spec in several:
        fold.parse(spec)
    specs = [*machines, *several]
    if not all(specs) or not all(map(layout.models, specs)) or not specs:
        raise UsageError("a plan needs GPUs to choose from: --gpus T4,L4,8xA100, or --cluster 8x8xH100,16x8xA100")
    return tuple(dict.fromkeys(specs))


def _parts(texts: str | Sequence[str]) -> list[str]:
    return [part.strip() for text in ([texts] if isinstance(texts, str) else texts) for part in text.split(",")]


def ranks_of(nproc_per_node: int | str | None, specs: Sequence[str]) -> int | str | None:
    """How many ranks a candidate has, as in `Question.processes`: one per GPU if any candidate has several GPUs.

    Raises:
        UsageError: the text is neither a number nor "gpu".
    """
    if nproc_per_node is None:
        machines = [spec for spec in specs if not layout.is_cluster(spec)]
        return "gpu" if any(len(catalogue.parse(spec)) > 1 for spec in machines) else None
    if nproc_per_node == "gpu" or (str(nproc_per_node).isdecimal() and int(nproc_per_node) > 0):
        return "gpu" if nproc_per_node == "gpu" else int(nproc_per_node)
    raise UsageError(
        f"--nproc-per-node cannot be {nproc_per_node!r}: it must be a number, or gpu for one process per GPU"
    )


def make(
    question: Question,
    work: Work,
    *,
    backend: str = "local",
    scheduler: str | None = None,
    jobs: int | None = None,
    folder: Path | None = None,
    fresh: bool = False,
    suggest: bool = False,
    progress: Callable[[Planner], None] | None = None,
) -> Plan:
    """Answer a question, in a pool opened for it.

    Args:
        question: what to rehearse.
        work: the length of a whole run, and the goal.
        backend: "local", "dask" or "ray"; `scheduler` is the cluster's address, `jobs` how many run at once.
        folder: where finished rehearsals are cached; None disables the cache.
        fresh: whether to ignore cached rehearsals.
        suggest: whether to try what may help the best candidate or, if none fits, the nearest one.
        progress: called each time a rehearsal ends.

    Raises:
        UsageError: an argument is not valid.
    """
    if work.steps is not None and work.samples is not None:
        raise UsageError("--steps and --samples both give the length of a run: give one of them")
    if work.chosen not in GOALS:
        raise UsageError(f"the goal cannot be {work.chosen!r}: it is {' or '.join(GOALS)}")
    if work.chosen == "cheapest" and not work.prices:
        raise UsageError("--goal cheapest needs prices per GPU and hour: --price H100=2.49")
    names = [axis.name for axis in question.axes] + ([question.largest.name] if question.largest else [])
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} varies twice: name it in one --vary, or in --largest")
    begun, processor_s = time.monotonic(), _processor_s()
    cache = Cache(folder, fresh)
    pool = open_pool(backend, scheduler, jobs)
    try:
        planner = Planner(question, pool, cache, progress)
        answers = planner.run()
        rows = rows_of(answers, question, work)
        tips = []
        if suggest and not planner.interrupted:
            try:
                tips = _tips(question, answers, rows, pool, cache)
            except KeyboardInterrupt:
                planner.interrupted = True
    finally:
        pool.close()
    cache.trim()
    words = " ".join([question.program.name, *question.program.arguments])
    return Plan(
        rows, work, words, planner.rehearsals, planner.cached, time.monotonic() - begun,
        _processor_s() - processor_s if backend == "local" else None, planner.interrupted, tips,
    )  # fmt: skip


def _processor_s() -> float:
    """Processor time of this process and of all children that it has waited for."""
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def _tips(question: Question, answers: Sequence[Answer], rows: Sequence[Row], pool: Pool, cache: Cache) -> list[str]:
    """What was tried on the first row that fits or, if none does, on the nearest one."""
    row = next((row for row in rows if row.fits or row.status == DOES_NOT_FIT), None)
    for answer in answers:
        values = {choice.name: choice.value for choice in answer.candidate.choices}
        if row is not None and (answer.candidate.spec, values) == (row.gpus, row.choices):
            return [f"on {named(row)}: {text}" for text in suggestions(question, answer, pool, cache)]
    return []
