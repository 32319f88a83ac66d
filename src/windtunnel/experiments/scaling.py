"""How much faster are several GPUs than one, and when are they slower?

The documents say many things about several GPUs: that `nn.DataParallel` saturates them from one process, that
`DistributedDataParallel` is faster, that small data is slower on several than on one or even on the CPU, that eight are
not fully used, and that their number should be even, or the program may abort.

A training step of two networks is timed with batches of several sizes on 1, 2, 3, ... GPUs. The batch is one whole, of
which each GPU takes a part, so the work stays the same and a perfect machine is n times as fast on n GPUs. DataParallel
is one process with a thread a GPU; it copies the parameters to each GPU in each step. DistributedDataParallel is a
process a GPU, each with parameters of its own; they average their gradients while the backward pass goes on. The ranks
are started once, and smaller groups of them train while the others wait.

Whether GPUs share their work well depends on the bytes of the parameters, which move in each step whatever the batch,
and on the arithmetic, which grows with the batch. Small steps are bound by the host, which launches kernel after kernel
on every GPU.

On emulated GPUs the links are those of one machine of the model: NVLink where it has it, else PCI Express. The host's
times are an assumption. That Python's lock lets one thread launch at a time is not modelled: threads launch side by
side, and DataParallel looks better here than it is.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from windtunnel import torch as wt
from windtunnel.experiments import _measure
from windtunnel.experiments._result import Axis, Column, Fact, Plot, Result, Series, Table, Value

_multiprocessing: Any = torch.multiprocessing  # it carries no types

GPUS = 2
VALUES = True  # DistributedDataParallel compares its ranks by values
LAYERS = 6
WAYS = {"threads_s": "DataParallel", "processes_s": "DistributedDataParallel"}
BOOK = "the book's"
WIDE = "wide"


@dataclass(frozen=True)
class ScalingSizes:
    """Rows of a batch for each network, the wide one's width, steps that are timed, and the most GPUs of each way."""

    book: tuple[int, ...] = (128,)
    wide: tuple[int, ...] = (128, 1024)
    width: int = 1024
    steps: int = 2
    threads: int = 8
    processes: int = 8


SIZES = ScalingSizes()
SMALL = ScalingSizes(wide=(2048,), width=512, steps=1, processes=2)


class Case(NamedTuple):
    """A network and the rows of its batch."""

    network: str
    rows: int

    def __str__(self) -> str:
        return f"{self.network}, {self.rows:,} rows"


Times = dict[Case, float]
"""Seconds of a step on the CPU."""


class ScalingTime(NamedTuple):
    """A case on some GPUs: seconds of a step in a process with threads, and in processes; None if not tried."""

    case: Case
    gpus: int
    threads_s: float | None
    processes_s: float | None


def cases(sizes: ScalingSizes) -> list[Case]:
    """All networks with all their batches."""
    return [Case(BOOK, rows) for rows in sizes.book] + [Case(WIDE, rows) for rows in sizes.wide]


def _network(case: Case, width: int) -> nn.Module:
    """The book's network of 13, 16, 32 and 1 units, or six layers of one width."""
    units = [width] * (LAYERS + 1) if case.network == WIDE else [13, 16, 32, 1]
    layers = [part for pair in pairwise(units) for part in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def _stepper(model: nn.Module, inputs: Tensor) -> Callable[[], None]:
    """One step of training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def _inputs(case: Case, width: int) -> Tensor:
    return torch.zeros(case.rows, width if case.network == WIDE else 13)


def on_cpu(sizes: ScalingSizes) -> Times:
    """A step of each case on the CPU."""
    times = {}
    for case in cases(sizes):
        step = _stepper(_network(case, sizes.width), _inputs(case, sizes.width))
        times[case] = _measure.cpu_s(step)
    return times


def run(sizes: ScalingSizes, cpu: Times) -> Result:
    """All cases on one GPU, two, three and so on, in both ways."""
    found = wt.num_gpus()
    counts = range(1, min(found, max(sizes.threads, sizes.processes)) + 1)
    threads = {(case, n): _threads(case, n, sizes) for case in cases(sizes) for n in counts if n <= sizes.threads}
    processes = _processes(sizes, min(found, sizes.processes))
    rows = [
        ScalingTime(case, n, threads.get((case, n)), processes.get((case, n))) for case in cases(sizes) for n in counts
    ]
    facts, conclusion = _conclude(rows, cpu)
    return Result(
        name="scaling",
        devices=_measure.devices(),
        tables=_tables(rows, cpu),
        plots=tuple(_plot(rows, way) for way in WAYS),
        facts=facts,
        conclusion=conclusion,
    )


def _timed(step: Callable[[], None], steps: int) -> float:
    def work() -> None:
        for _ in range(steps):
            step()

    step()
    return _measure.wall_s(work, warmup=0) / steps


def _threads(case: Case, count: int, sizes: ScalingSizes) -> float:
    gpu = wt.gpu(0)
    model = wt.to(_network(case, sizes.width), gpu)
    placed = nn.DataParallel(model, device_ids=list(range(count))) if count > 1 else model
    return _timed(_stepper(placed, wt.to(_inputs(case, sizes.width), gpu)), sizes.steps)


def _processes(sizes: ScalingSizes, world: int) -> dict[tuple[Case, int], float]:
    """What rank 0 of `world` processes measured, for each case and each number of ranks."""
    with tempfile.TemporaryDirectory(prefix="windtunnel-scaling-") as folder:
        _multiprocessing.spawn(_rank, args=(world, folder, sizes), nprocs=world)
        times = json.loads((Path(folder) / "times.json").read_text(encoding="utf-8"))
    return {(Case(name, rows), ranks): seconds for name, rows, ranks, seconds in times}


def _rank(rank: int, world: int, folder: str, sizes: ScalingSizes) -> None:
    """One process: it trains in every group that it belongs to, and waits for the others meanwhile."""
    gpu = wt.gpu(rank)
    torch.cuda.set_device(gpu)
    meeting = (Path(folder) / "rendezvous").as_uri()
    dist.init_process_group("nccl", init_method=meeting, rank=rank, world_size=world)
    groups = [dist.new_group(list(range(ranks))) for ranks in range(1, world + 1)]
    times = []
    for case in cases(sizes):
        for ranks, group in enumerate(groups, start=1):
            if rank < ranks:
                model = wt.to(_network(case, sizes.width), gpu)
                placed = DistributedDataParallel(model, device_ids=[rank], process_group=group)
                mine = _inputs(case, sizes.width).tensor_split(ranks)[rank]
                times.append((case.network, case.rows, ranks, _timed(_stepper(placed, wt.to(mine, gpu)), sizes.steps)))
            dist.barrier(device_ids=[rank])
    if rank == 0:
        (Path(folder) / "times.json").write_text(json.dumps(times), encoding="utf-8")
    dist.destroy_process_group()


class Curve(NamedTuple):
    """A case in one way: by number of GPUs, how many times as fast as one GPU without any of it."""

    case: Case
    speedups: dict[int, float]

    @property
    def most(self) -> int:
        """The largest number of GPUs that was tried."""
        return max(self.speedups)

    @property
    def odd_fit_in(self) -> bool:
        """Whether each odd number of GPUs is as fast as its even neighbours or between them, within a tenth."""
        known = self.speedups
        odd = [n for n in known if n % 2 and {n - 1, n + 1} <= known.keys()]
        around = [[*sorted((known[n - 1], known[n + 1])), known[n]] for n in odd]
        return bool(odd) and all(0.9 * low <= speed <= 1.1 * high for low, high, speed in around)


def _curves(rows: list[ScalingTime], way: str) -> list[Curve]:
    ones = {row.case: row.threads_s for row in rows if row.gpus == 1}
    curves = []
    for case, one in ones.items():
        mine = [(row.gpus, getattr(row, way)) for row in rows if row.case == case]
        curves.append(Curve(case, {gpus: (one or 0.0) / seconds for gpus, seconds in mine if seconds is not None}))
    return curves


def _tables(rows: list[ScalingTime], cpu: Times) -> tuple[Table, Table]:
    columns = (
        Column("network"),
        Column("rows"),
        Column("GPUs"),
        Column("DataParallel", "s", ("gpu",)),
        Column("Distributed", "s", ("gpu",)),
        Column("DataParallel speed-up", "times", ("gpu",)),
        Column("Distributed speed-up", "times", ("gpu",)),
        Column("of the ideal", "share", ("gpu",)),
    )
    threads, processes = ({curve.case: curve.speedups for curve in _curves(rows, way)} for way in WAYS)
    cells: list[tuple[Value, ...]] = []
    for row in rows:
        one_way, other = threads[row.case].get(row.gpus), processes[row.case].get(row.gpus)
        share = None if other is None else other / row.gpus
        cells.append((*row.case, row.gpus, row.threads_s, row.processes_s, one_way, other, share))
    alone = (
        Column("network"),
        Column("rows"),
        Column("CPU", "s", ("cpu",)),
        Column("one GPU", "s", ("gpu",)),
        Column("GPU is faster", "times", ("cpu", "gpu")),
    )
    ones = [(row.case, row.threads_s) for row in rows if row.gpus == 1 and row.threads_s is not None]
    single: list[tuple[Value, ...]] = [(*case, cpu[case], one, cpu[case] / one) for case, one in ones]
    return Table("A step on several GPUs", columns, tuple(cells)), Table("A step without them", alone, tuple(single))


def _plot(rows: list[ScalingTime], way: str) -> Plot:
    curves = _curves(rows, way)
    most = max(curve.most for curve in curves)
    ideal = tuple(float(n) for n in range(1, most + 1))
    series = [Series("as many times as GPUs", ideal, ideal)]
    for curve in curves:
        series.append(
            Series(str(curve.case), tuple(map(float, curve.speedups)), tuple(curve.speedups.values()), ("gpu",))
        )
    return Plot(WAYS[way], Axis("GPUs"), Axis("speed-up", "times"), tuple(series))


def _conclude(rows: list[ScalingTime], cpu: Times) -> tuple[dict[str, Fact], tuple[str, ...]]:
    threads, processes = (_curves(rows, way) for way in WAYS)
    small, large = threads[0].case, threads[-1].case
    seconds = {(row.case, row.gpus): row for row in rows}
    one, most = seconds[small, 1].threads_s or 0.0, (threads[0].most, processes[0].most)
    by_threads, by_processes = seconds[small, most[0]].threads_s or 0.0, seconds[small, most[1]].processes_s or 0.0
    facts = {
        "rows": Fact(small.rows),
        "cpu": Fact(cpu[small], "s"),
        "one": Fact(one, "s"),
        "threads_most": Fact(most[0]),
        "processes_most": Fact(most[1]),
        "threads": Fact(by_threads, "s"),
        "processes": Fact(by_processes, "s"),
        "large_rows": Fact(large.rows),
        "large_threads": Fact(threads[-1].speedups[threads[-1].most], "times"),
        "large_processes": Fact(processes[-1].speedups[processes[-1].most], "times"),
        "share": Fact(processes[-1].speedups[processes[-1].most] / processes[-1].most, "share"),
    }
    first = "A step of the book's network with {rows} rows takes {one} on one GPU and {cpu} on the CPU; "
    first += "more GPUs make it slower: " if min(by_threads, by_processes) > one else "it takes "
    first += "{threads} on {threads_most} with DataParallel, {processes} on {processes_most} with "
    first += "DistributedDataParallel."
    second = "A step of the wide network with {large_rows} rows is {large_processes} as fast on {processes_most} GPUs "
    second += "with DistributedDataParallel, {share} of the ideal, and {large_threads} on {threads_most} with "
    second += "DataParallel"
    second += "; odd numbers of GPUs do as well as even ones." if processes[-1].odd_fit_in else "."
    return facts, tuple(sentence.format(**facts) for sentence in (first, second))
