"""Have GPUs become a thousand times faster every decade?

The documents say that the performance of GPUs has grown by a factor of 1000 every decade since 2000. The table that
they mean is in the introduction of the same book: 1 GFLOP/s in 2000, 1 TFLOP/s in 2010, 1 PFLOP/s in 2020. Its first
line is a CPU, and its last line a DGX-2, a machine of sixteen GPUs.

Here single GPUs are compared, with the figures of windtunnel's own catalogue. For each quantity the best that there was
in each year is drawn, and the growth from the first year to the last record is given per decade: what ten years of
it would bring. A GPU's fastest format is the fastest kind of floating-point arithmetic that it has: 32 bits on the
earliest, 16 and then 8 bits, multiplied as whole matrices, on later ones. `windtunnel gpus NAME` names the source of
each figure; a K80 counts as one of the two GPUs of its board. The catalogue does not reach back to 2000, and nothing
here is measured or modelled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from windtunnel import gpus
from windtunnel.experiments._result import Axis, Column, Fact, Plot, Result, Series, Table, Unit, Value
from windtunnel.gpus import Gpu

GPUS = 0
VALUES = False
CLAIM = 1000
CLOSE = 2.0
"""The claim holds where the growth is within this factor of it."""
BITS = {"fp64": 64, "fp32": 32, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8}
"""The floating-point formats of the catalogue, with the size of a number in memory."""


@dataclass(frozen=True)
class DecadeSizes:
    """The models to compare: all of the catalogue when there are none."""

    models: tuple[str, ...] = ()


SIZES = DecadeSizes()
SMALL = DecadeSizes(("K80", "P100", "V100", "A100", "H100", "B200"))


class Quantity(NamedTuple):
    """Something that grows: a figure of a GPU, None where it has none."""

    name: str
    unit: Unit
    of: Callable[[Gpu], float | None]


class Growth(NamedTuple):
    """From the first GPU that has a quantity to the one that holds the record."""

    quantity: Quantity
    first: Gpu
    last: Gpu

    @property
    def times(self) -> float:
        """How many times as much the record is."""
        return (self.quantity.of(self.last) or 0.0) / (self.quantity.of(self.first) or 1.0)

    @property
    def per_decade(self) -> float:
        """How many times as much ten years of that would bring."""
        return float(self.times ** (10 / max(1, self.last.release_year - self.first.release_year)))


def fastest(gpu: Gpu) -> str:
    """The floating-point format in which a GPU computes most a second."""
    return max((name for name in gpu.peak_flops if name in BITS), key=lambda name: gpu.peak_flops[name])


SINGLE = Quantity("single precision", "FLOP/s", lambda gpu: gpu.peak_flops["fp32"])
FASTEST = Quantity("fastest format", "FLOP/s", lambda gpu: gpu.peak_flops[fastest(gpu)])
HALF = Quantity("half precision", "FLOP/s", lambda gpu: gpu.peak_flops.get("fp16"))
BANDWIDTH = Quantity("memory bandwidth", "B/s", lambda gpu: float(gpu.memory_bandwidth_bytes_per_s))
MEMORY = Quantity("memory", "B", lambda gpu: float(gpu.memory_bytes))
PER_WATT = Quantity("fastest format, per watt", "FLOP/s", lambda gpu: gpu.peak_flops[fastest(gpu)] / gpu.power_limit_w)
QUANTITIES = (FASTEST, HALF, SINGLE, PER_WATT, BANDWIDTH, MEMORY)


def run(sizes: DecadeSizes, cpu: None) -> Result:
    """The growth of each quantity; it needs no device at all."""
    del cpu
    models = [gpus.find(name) for name in sizes.models or gpus.names()]
    models.sort(key=lambda gpu: (gpu.release_year, gpu.key))
    found = {quantity.name: _growth(quantity, models) for quantity in QUANTITIES}
    facts, conclusion = _conclude(found)
    return Result(
        name="decade",
        devices={},
        tables=(_models(models), _growths(found)),
        plots=(_plot(models),),
        facts=facts,
        conclusion=conclusion,
        notes=(
            "Every number is from the catalogue of GPUs: data sheets and listings, named by `windtunnel gpus NAME`.",
        ),
    )


def _growth(quantity: Quantity, models: list[Gpu]) -> Growth:
    having = [gpu for gpu in models if quantity.of(gpu) is not None]
    return Growth(quantity, having[0], max(having, key=lambda gpu: quantity.of(gpu) or 0.0))


def _models(models: list[Gpu]) -> Table:
    columns = (
        Column("year"),
        Column("model"),
        Column("single precision", "FLOP/s"),
        Column("fastest format"),
        Column("its peak", "FLOP/s"),
        Column("bandwidth", "B/s"),
        Column("memory", "B"),
        Column("power limit"),
    )
    rows: list[tuple[Value, ...]] = [
        (
            str(gpu.release_year),
            gpu.key,
            gpu.peak_flops["fp32"],
            fastest(gpu),
            gpu.peak_flops[fastest(gpu)],
            gpu.memory_bandwidth_bytes_per_s,
            gpu.memory_bytes,
            f"{gpu.power_limit_w} W",
        )
        for gpu in models
    ]
    return Table("The catalogue by year of release", columns, tuple(rows))


def _growths(found: dict[str, Growth]) -> Table:
    columns = (
        Column("quantity"),
        Column("from"),
        Column("to"),
        Column("years"),
        Column("grew", "times"),
        Column("per decade", "times"),
    )
    rows: list[tuple[Value, ...]] = []
    for name, growth in found.items():
        first, last = (f"{gpu.key}, {gpu.release_year}" for gpu in (growth.first, growth.last))
        years = growth.last.release_year - growth.first.release_year
        rows.append((name, first, last, years, growth.times, growth.per_decade))
    return Table("What it amounts to", columns, tuple(rows))


def _plot(models: list[Gpu]) -> Plot:
    begin = models[0].release_year
    years = range(begin, models[-1].release_year + 1)
    since = tuple(float(year - begin) for year in years)
    claimed = tuple((FASTEST.of(models[0]) or 0.0) * CLAIM ** (passed / 10) for passed in since)
    series = [Series("the claim", since, claimed)]
    for quantity in (FASTEST, SINGLE):
        best = tuple(max(quantity.of(gpu) or 0.0 for gpu in models if gpu.release_year <= year) for year in years)
        series.append(Series(quantity.name, since, best))
    return Plot("The fastest GPU", Axis(f"years after {begin}"), Axis("peak", "FLOP/s", log=True), tuple(series))


def _conclude(found: dict[str, Growth]) -> tuple[dict[str, Fact], tuple[str, ...]]:
    fast, single, bandwidth = (found[quantity.name] for quantity in (FASTEST, SINGLE, BANDWIDTH))
    facts = {
        "claim": Fact(CLAIM, "times"),
        "first_year": Fact(str(fast.first.release_year)),
        "last_year": Fact(str(fast.last.release_year)),
        "first": Fact(fast.first.key),
        "last": Fact(fast.last.key),
        "first_bits": Fact(BITS[fastest(fast.first)]),
        "last_bits": Fact(BITS[fastest(fast.last)]),
        "fastest_grew": Fact(fast.times, "times"),
        "fastest_decade": Fact(fast.per_decade, "times"),
        "single_decade": Fact(single.per_decade, "times"),
        "bandwidth_decade": Fact(bandwidth.per_decade, "times"),
    }
    if 1 / CLOSE < fast.per_decade / CLAIM < CLOSE:
        verdict = "close to the claim's {claim}"
    else:
        verdict = "where the claim says {claim}"
    first = (
        "From the {first} of {first_year} to the {last} of {last_year} the peak of one GPU in its fastest format grew "
    )
    first += f"{{fastest_grew}}, which is {{fastest_decade}} a decade, {verdict}"
    shrank = facts["first_bits"] != facts["last_bits"]
    first += ", while its numbers shrank from {first_bits} bits to {last_bits}." if shrank else "."
    second = "In single precision throughout it grew {single_decade} a decade, and the bandwidth of its memory "
    second += "{bandwidth_decade}: a program that does not change with the hardware sees these."
    return facts, tuple(sentence.format(**facts) for sentence in (first, second))
