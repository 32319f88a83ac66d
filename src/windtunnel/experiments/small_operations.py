"""Are many small operations worse than one big one?

The documents say so in passing: "a lot of small operations are much worse than one big operation", and "several
operations at a time are better than many single operations interspersed in the code". Here a vector is added to itself
once as a whole and then in more and more parts, the work in all the same. Each part costs the host a call and the GPU a
launch, and below some size nothing else matters.

Two ways out keep the parts. `torch._foreach_add` takes a list of tensors and launches one kernel for many of them; the
optimizers of PyTorch work so. A CUDA graph records the launches once and replays them with one call: the host's part is
gone, the GPU's remains.

The second table sends rows to the GPU, adds and fetches the sums: row by row, and all rows in one tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from windtunnel import torch as wt
from windtunnel.experiments import _measure
from windtunnel.experiments._result import Axis, Column, Fact, Plot, Result, Series, Table, Value

GPUS = 0
VALUES = False


@dataclass(frozen=True)
class OperationSizes:
    """Into how many parts a vector of `elements` numbers is cut; how many rows of `row` numbers are sent."""

    sizes: tuple[int, ...] = (1, 4, 16, 64, 256, 1024, 4096)
    elements: int = 1 << 22
    rows: int = 200
    row: int = 1000
    repeats: int = 5


SIZES = OperationSizes()
SMALL = OperationSizes(sizes=(1, 16, 256), elements=1 << 18, rows=20, repeats=2)


class CutTime(NamedTuple):
    """One cut, in seconds; None where there is no GPU."""

    parts: int
    cpu_s: float
    loop_s: float | None = None
    foreach_s: float | None = None
    graph_s: float | None = None


def on_cpu(sizes: OperationSizes) -> dict[int, float]:
    """The time of the additions on the CPU, by the number of parts."""
    times = {}
    for count in sizes.sizes:
        parts = _parts(sizes, count, wt.cpu())
        times[count] = _measure.cpu_s(_loop(parts))
    return times


def run(sizes: OperationSizes, cpu: dict[int, float]) -> Result:
    """All cuts, and the rows, on the first GPU where there is one."""
    rows = [_row(sizes, count, seconds) for count, seconds in cpu.items()]
    copies = _copies(sizes) if wt.num_gpus() else {}
    facts, conclusion = _conclude(sizes, rows, copies)
    return Result(
        name="small-operations",
        devices=_measure.devices(),
        tables=(_table(sizes, rows), *([_copies_table(sizes, copies)] if copies else [])),
        plots=(_plot(rows),),
        facts=facts,
        conclusion=conclusion,
    )


def _parts(sizes: OperationSizes, count: int, device: torch.device) -> list[torch.Tensor]:
    return list(torch.ones(sizes.elements, device=device).chunk(count))


def _loop(parts: list[torch.Tensor]) -> Callable[[], object]:
    return lambda: [part.add_(1.0) for part in parts]


def _row(sizes: OperationSizes, count: int, cpu_s: float) -> CutTime:
    if not wt.num_gpus():
        return CutTime(count, cpu_s)
    parts = _parts(sizes, count, wt.gpu(0))
    loop = _loop(parts)
    graph = torch.cuda.CUDAGraph()
    loop_s = _measure.wall_s(loop, repeats=sizes.repeats)
    with torch.cuda.graph(graph):
        loop()
    graph_s = _measure.wall_s(graph.replay, repeats=sizes.repeats)
    foreach_s = _measure.wall_s(lambda: torch._foreach_add_(parts, 1.0), repeats=sizes.repeats)
    return CutTime(count, cpu_s, loop_s, foreach_s, graph_s)


EACH, TOGETHER = "row by row", "all rows in one tensor"


def _copies(sizes: OperationSizes) -> dict[str, float]:
    """The time to send rows, add and fetch the sums, by way."""
    gpu = wt.gpu(0)
    rows = [torch.ones(sizes.row) for _ in range(sizes.rows)]

    def each() -> None:
        for row in rows:
            row.to(gpu).add(1.0).cpu()

    def together() -> None:
        torch.stack(rows).to(gpu).add(1.0).cpu()

    return {way: _measure.wall_s(work, repeats=3) for way, work in ((EACH, each), (TOGETHER, together))}


def _table(sizes: OperationSizes, rows: list[CutTime]) -> Table:
    columns = (
        Column("parts"),
        Column("numbers in each"),
        Column("CPU, one by one", "s", ("cpu",)),
        Column("GPU, one by one", "s", ("gpu",)),
        Column("GPU, a part", "s", ("gpu",)),
        Column("GPU, foreach", "s", ("gpu",)),
        Column("GPU, graph", "s", ("gpu",)),
    )
    cells: list[tuple[Value, ...]] = []
    for row in rows:
        each = None if row.loop_s is None else row.loop_s / row.parts
        numbers = sizes.elements // row.parts
        cells.append((row.parts, numbers, row.cpu_s, row.loop_s, each, row.foreach_s, row.graph_s))
    return Table(f"One added to {sizes.elements:,} numbers", columns, tuple(cells))


def _copies_table(sizes: OperationSizes, copies: dict[str, float]) -> Table:
    columns = (Column("way"), Column("time", "s", ("gpu",)), Column("a row", "s", ("gpu",)))
    rows = tuple((way, seconds, seconds / sizes.rows) for way, seconds in copies.items())
    return Table(f"{sizes.rows} rows of {sizes.row:,} numbers to the GPU, one added, and back", columns, rows)


def _plot(rows: list[CutTime]) -> Plot:
    xs = tuple(float(row.parts) for row in rows)
    series = [Series("CPU, one by one", xs, tuple(row.cpu_s for row in rows), ("cpu",))]
    if rows[0].loop_s is not None:
        series += [
            Series("GPU, one by one", xs, tuple(row.loop_s for row in rows), ("gpu",)),
            Series("GPU, foreach", xs, tuple(row.foreach_s for row in rows), ("gpu",)),
            Series("GPU, graph", xs, tuple(row.graph_s for row in rows), ("gpu",)),
        ]
    return Plot("The same work in more parts", Axis("parts", log=True), Axis("time", "s", log=True), tuple(series))


def _conclude(
    sizes: OperationSizes, rows: list[CutTime], copies: dict[str, float]
) -> tuple[dict[str, Fact], tuple[str, ...]]:
    one, many = rows[0], rows[-1]
    facts = {"parts": Fact(many.parts), "cpu_ratio": Fact(many.cpu_s / one.cpu_s, "times")}
    if one.loop_s is None or many.loop_s is None or many.foreach_s is None or many.graph_s is None:
        first = "On the CPU {parts} small additions take {cpu_ratio} the time of " + _first_cut(one) + "."
        return facts, (first.format(**facts), "A launch costs more than a call: `--gpus V100` emulates a GPU.")
    facts |= {
        "gpu_ratio": Fact(many.loop_s / one.loop_s, "times"),
        "each": Fact(many.loop_s / many.parts, "s"),
        "foreach": Fact(many.loop_s / many.foreach_s, "times"),
        "graph": Fact(many.loop_s / many.graph_s, "times"),
        "rows": Fact(sizes.rows),
        "copies": Fact(copies[EACH] / copies[TOGETHER], "times"),
    }
    first = "On the GPU {parts} small additions take {gpu_ratio} the time of " + _first_cut(one)
    first += " ({each} each), on the CPU {cpu_ratio}; foreach makes them {foreach} as fast, a CUDA graph {graph}."
    second = "Sending {rows} rows one by one and fetching each sum takes {copies} the time of one tensor."
    return facts, tuple(sentence.format(**facts) for sentence in (first, second))


def _first_cut(one: CutTime) -> str:
    return "one big one" if one.parts == 1 else "the fewest parts"
