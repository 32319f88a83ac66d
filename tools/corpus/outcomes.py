"""Predicted beside published figures: errors, bands and rankings, as every comparison with a corpus prints them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import log
from statistics import median
from typing import Any, NamedTuple

from windtunnel.cost import CostModel
from windtunnel.cost.scales import POWER_LIMIT
from windtunnel.trace.operation import Signature


class Outcome(NamedTuple):
    """A model in a group of rows: its predicted and its published figure, times or rates, and the relative band.

    `within` is between which factors of the predicted time the truth is said to lie, where hosts widen the band.
    `parts` are the parts of the predicted time that classes of kernels take (`parts_of`).
    """

    model: str
    group: str
    predicted: float
    published: float
    band: float | None
    is_rate: bool = False
    within: tuple[float, float] | None = None
    parts: tuple[tuple[str, float], ...] = ()

    @property
    def ratio(self) -> float:
        return self.predicted / self.published

    @property
    def inside(self) -> bool:
        """Whether the published time lies in the band around the predicted one."""
        if self.within is not None:
            return self.within[0] <= 1.0 / self.ratio <= self.within[1]
        return self.band is not None and abs((self.ratio if self.is_rate else 1.0 / self.ratio) - 1.0) <= self.band


def parts_of(
    cost: CostModel, kernels: Iterable[tuple[Signature, int]], whole_ns: float, limited: bool = False
) -> tuple[tuple[str, float], ...]:
    """The parts that classes of kernels take of a time, of the kernels with their nanoseconds; those whose bands no
    program scales have no name. `limited` says that they met the power limit."""
    found: dict[str, float] = defaultdict(float)
    for signature, ns in kernels:
        one = cost.kernel(signature)
        name = POWER_LIMIT if limited and one.peak_ns else one.family if one.judged else ""
        found[name] += ns / whole_ns
    return tuple(found.items())


def tau(pairs: Iterable[tuple[Any, ...]]) -> float:
    """Kendall's tau (a) of predicted and published figures; where a name follows them, within the rows of that name.

    Predictions that are the same count as 0.
    """
    signs = [
        ((a[0] > b[0]) - (a[0] < b[0])) * ((a[1] > b[1]) - (a[1] < b[1]))
        for a, b in combinations(pairs, 2)
        if a[1] != b[1] and a[2:] == b[2:]
    ]
    return sum(signs) / len(signs) if signs else 0.0


def middle_and_tail(some: Sequence[Outcome]) -> tuple[float, float]:
    """The median of their errors and the 90th percentile."""
    errors = sorted(abs(one.ratio - 1.0) for one in some)
    return median(errors), errors[int(0.9 * (len(errors) - 1))]


def figures_of(some: Sequence[Outcome], named: Callable[[Outcome], str]) -> dict[str, str | float]:
    """A row of figures: errors, the share inside the band, and the one that is worst predicted, by its name."""
    middle, tail = middle_and_tail(some)
    worst = max(some, key=lambda one: abs(log(one.ratio)))
    return {
        "number": len(some),
        "median": round(100 * middle, 1),
        "p90": round(100 * tail),
        "inside": round(100 * sum(one.inside for one in some) / len(some)),
        "worst": f"{named(worst)}: {worst.ratio:.2g} times as long",
    }


def error_figures(some: Sequence[Outcome]) -> dict[str, float]:
    """A row of figures: how many there are, their errors, their bias, and the share inside the band if all have one."""
    middle, tail = middle_and_tail(some)
    bias = median(one.ratio for one in some) - 1.0
    found = {"number": len(some), "median": round(100 * middle, 1), "p90": round(100 * tail, 1)}
    found["bias"] = round(100 * bias, 1)
    if all(one.band is not None for one in some):
        found["inside"] = round(100 * sum(one.inside for one in some) / len(some))
    return found


def ranking(some: Sequence[Outcome]) -> dict[str, float]:
    """A row of figures: Kendall's tau of their ranking."""
    return {"tau": round(tau((one.predicted, one.published) for one in some), 2)}


def errors_of(some: Sequence[Outcome]) -> str:
    """How many there are, the median of their errors and the 90th percentile."""
    middle, tail = middle_and_tail(some)
    return f"{len(some)} rows, median error {middle:.1%}, p90 {tail:.1%}"


def summarize(outcomes: Iterable[Outcome]) -> None:
    """A line for each group, and one for all that are times."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        groups[one.group].append(one)
        if one.band is not None:
            groups["all"].append(one)
    for name, some in sorted(groups.items()):
        bias = median(one.ratio for one in some) - 1.0
        order = ranking(some)["tau"]
        banded = [one for one in some if one.band is not None]
        inside = f"{sum(one.inside for one in banded) / len(banded):.0%} inside their band" if banded else "no band"
        print(f"{name}: {errors_of(some)}, bias {bias:+.1%}, tau {order:.2f}, {inside}")


def show(one: Outcome) -> Outcome:
    """Print the line of one row."""
    band = "no band" if one.band is None else f"band {one.band:.0%}"
    if one.within is not None:
        band = f"within {one.within[0]:.2f} to {one.within[1]:.2f}"
    times = f"{one.predicted:10.1f} of {one.published:10.1f} ms {one.ratio - 1:+7.1%}"
    print(f"{one.model:32} {one.group:24} {times}  {band}", flush=True)
    return one
