"""When is a matrix product faster on a GPU than on the CPU?

The documents' first exercise: multiply two large matrices on the CPU and on a GPU, then try it with a task that takes
little work. They also promise that a GPU is "tens to a thousand times" faster. Both follow from two numbers. A launch
costs some microseconds however little there is to do, so a small product is faster on the CPU. The arithmetic of an
n x n product grows with n to the power of three and its data only with the square, so a large one reaches the GPU's
peak. Bringing the operands to the GPU and the result back moves the crossover up: that is the column "with copies".

A share of the peak compares the product with the arithmetic that the GPU's data sheet promises for that type.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import torch

from windtunnel import torch as wt
from windtunnel.experiments import _measure
from windtunnel.experiments._result import Axis, Column, Fact, Plot, Result, Series, Table, Value

GPUS = 0
VALUES = False
WITHOUT_INSTRUCTIONS = 6.0
"""How much slower than in single precision a CPU is in half precision from which on it has no instructions for it."""
PRECISIONS = {"float32": ("fp32",), "float16": ("fp16",), "float64": ("fp64_tensor", "fp64")}


@dataclass(frozen=True)
class MatmulSizes:
    """The sides of the square matrices, how often each product is timed, and where the CPU gives up, in seconds."""

    sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    repeats: int = 20
    longest_on_cpu_s: float = 1.0


SIZES = MatmulSizes()
SMALL = MatmulSizes(sizes=(16, 128, 512), repeats=3, longest_on_cpu_s=0.2)

Times = dict[tuple[str, int], float]


class ProductTime(NamedTuple):
    """One product: its type and side, and what it takes in seconds; None where it was not run."""

    dtype: str
    n: int
    cpu_s: float | None
    gpu_s: float | None
    copied_s: float | None
    peak_share: float | None

    @property
    def speedup(self) -> float | None:
        """How many times as fast the GPU is."""
        return None if self.cpu_s is None or self.gpu_s is None else self.cpu_s / self.gpu_s


def on_cpu(sizes: MatmulSizes) -> Times:
    """The time of each product on the CPU; of each type up to the size that takes too long."""
    times = {}
    for dtype in PRECISIONS:
        for n in sizes.sizes:
            a, b = (torch.rand(n, n).to(getattr(torch, dtype)) for _ in range(2))
            times[dtype, n] = _measure.cpu_s(lambda a=a, b=b: a @ b)  # type: ignore[misc]
            if times[dtype, n] > sizes.longest_on_cpu_s:
                break
    return times


def run(sizes: MatmulSizes, cpu: Times) -> Result:
    """All products, on the first GPU where there is one."""
    rows = [_row(dtype, n, cpu.get((dtype, n)), sizes.repeats) for dtype in PRECISIONS for n in sizes.sizes]
    singles = [row for row in rows if row.dtype == "float32"]
    facts, conclusion = _conclude_without_gpu(singles) if wt.num_gpus() == 0 else _conclude(singles)
    half, why = _half_precision(rows) if wt.num_gpus() else ({}, ())
    return Result(
        name="matmul",
        devices=_measure.devices(),
        tables=(_table(rows),),
        plots=(_plot(rows),),
        facts=facts | half,
        conclusion=conclusion + why,
    )


def _row(dtype: str, n: int, cpu_s: float | None, repeats: int) -> ProductTime:
    if wt.num_gpus() == 0:
        return ProductTime(dtype, n, cpu_s, None, None, None)
    kind, gpu = getattr(torch, dtype), wt.gpu(0)
    host = [torch.zeros(n, n, dtype=kind) for _ in range(2)]
    a, b = wt.to(host, gpu)
    gpu_s = wt.timer(gpu).measure(torch.matmul, a, b, repeats=repeats).median_s
    copied_s = _measure.wall_s(lambda: torch.matmul(host[0].to(gpu), host[1].to(gpu)).cpu(), repeats=3)
    peak = _measure.peak_flops(gpu, *PRECISIONS[dtype])
    return ProductTime(dtype, n, cpu_s, gpu_s, copied_s, None if peak is None else _flops(n) / gpu_s / peak)


def _flops(n: int) -> int:
    return 2 * n**3


def _table(rows: list[ProductTime]) -> Table:
    columns = (
        Column("type"),
        Column("n"),
        Column("CPU", "s", ("cpu",)),
        Column("GPU", "s", ("gpu",)),
        Column("GPU with copies", "s", ("gpu",)),
        Column("GPU is faster", "times", ("cpu", "gpu")),
        Column("GPU rate", "FLOP/s", ("gpu",)),
        Column("of its peak", "share", ("gpu",)),
    )
    cells: list[tuple[Value, ...]] = []
    for row in rows:
        rate = None if row.gpu_s is None else _flops(row.n) / row.gpu_s
        cells.append((row.dtype, row.n, row.cpu_s, row.gpu_s, row.copied_s, row.speedup, rate, row.peak_share))
    return Table("The product of two n x n matrices", columns, tuple(cells))


def _plot(rows: list[ProductTime]) -> Plot:
    series = []
    for dtype in PRECISIONS:
        mine = [row for row in rows if row.dtype == dtype]
        xs = tuple(float(row.n) for row in mine)
        series.append(Series(f"CPU {dtype}", xs, tuple(row.cpu_s for row in mine), ("cpu",), dtype))
        series.append(Series(f"GPU {dtype}", xs, tuple(row.gpu_s for row in mine), ("gpu",), dtype))
    kept = tuple(one for one in series if any(y is not None for y in one.ys))
    return Plot("Time of one product", Axis("n", log=True), Axis("time", "s", log=True), kept)


def _crossover(sizes: list[tuple[int, float | None, float | None]]) -> int | None:
    """The smallest side from which on the second time is below the first at every side; None where there is none."""
    found = None
    for n, first_s, second_s in sizes:
        if first_s is None or second_s is None:
            continue
        faster = second_s < first_s
        found = (found or n) if faster else None
    return found


def _half_precision(rows: list[ProductTime]) -> tuple[dict[str, Fact], tuple[str, ...]]:
    """Why a GPU is so much faster in half precision: many a CPU has no instructions for products in it."""
    times = {(row.dtype, row.n): row.cpu_s for row in rows if row.cpu_s}
    both = [row for row in rows if row.dtype == "float16" and row.speedup and ("float32", row.n) in times]
    slower = [times["float16", row.n] / times["float32", row.n] for row in both]
    if not both or median(slower) < WITHOUT_INSTRUCTIONS:
        return {}, ()
    facts = {
        "largest_half": Fact(both[-1].n),
        "speedup_half": Fact(both[-1].speedup, "times"),
        "slower_half": Fact(slower[-1], "times"),
    }
    sentence = (
        "In half precision it is {speedup_half} as fast at n = {largest_half}, since the CPU has no instructions for "
        "such products: there they take {slower_half} as long as in single precision."
    )
    return facts, (sentence.format(**facts),)


def _conclude(rows: list[ProductTime]) -> tuple[dict[str, Fact], tuple[str, ...]]:
    """What the single-precision rows say of CPU and GPU."""
    compared = [row for row in rows if row.speedup is not None]
    small, large, last = compared[0], compared[-1], rows[-1]
    facts = {
        "smallest": Fact(small.n),
        "largest": Fact(large.n),
        "last": Fact(last.n),
        "crossover": Fact(_crossover([(row.n, row.cpu_s, row.gpu_s) for row in rows])),
        "crossover_copied": Fact(_crossover([(row.n, row.cpu_s, row.copied_s) for row in rows])),
        "speedup_smallest": Fact(small.speedup, "times"),
        "speedup_largest": Fact(large.speedup, "times"),
        "peak_smallest": Fact(small.peak_share, "share"),
        "peak_last": Fact(last.peak_share, "share"),
    }
    if facts["crossover"].value is None:
        first = "The CPU wins at n = {largest}, where the GPU is {speedup_largest} as fast"
    else:
        first = "From n = {crossover} on the GPU wins: it is {speedup_smallest} as fast as the CPU at n = {smallest} "
        first += "and {speedup_largest} at n = {largest}"
    if facts["crossover_copied"].value is None:
        first += "; with the operands copied to it and the result back, it does not win."
    else:
        first += "; with the operands copied to it and the result back, it wins from n = {crossover_copied} on."
    if small.peak_share is None or last.peak_share is None:
        second = "How much of its peak the GPU uses cannot be said: the catalogue does not have it."
    else:
        why = ", where the launch takes longer than the arithmetic," if small.peak_share < 0.1 else ""
        second = f"It uses {{peak_smallest}} of its peak at n = {{smallest}}{why} and {{peak_last}} at n = {{last}}."
    return facts, tuple(sentence.format(**facts) for sentence in (first, second))


def _conclude_without_gpu(rows: list[ProductTime]) -> tuple[dict[str, Fact], tuple[str, ...]]:
    """What the CPU alone has to show."""
    timed = [(row.n, row.cpu_s) for row in rows if row.cpu_s is not None]
    rates = [_flops(n) / seconds for n, seconds in timed]
    facts = {
        "smallest": Fact(timed[0][0]),
        "largest": Fact(timed[-1][0]),
        "rate_smallest": Fact(rates[0], "FLOP/s"),
        "rate_largest": Fact(rates[-1], "FLOP/s"),
    }
    first = "The CPU reaches {rate_smallest} at n = {smallest} and {rate_largest} at n = {largest}."
    second = "There is no GPU to compare it with here: `--gpus V100` emulates one."
    return facts, (first.format(**facts), second)
