"""How wide the bands of a GPU's kernels are to be: what holds four fifths of the programs that others timed on it.

The bands of `cost/data/bands.toml` are those of kernels that were timed one by one, often on other cards, often smaller
ones. Beside whole programs they come out too wide on one GPU and too narrow on another. So errors are held against them
on the programs that nothing was fitted on, and each GPU's classes of kernels get a factor: the quantile that split
conformal prediction takes, which holds for as large a part of programs like those. Each program is judged by the
factors of the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

from tools.corpus.outcomes import Outcome
from tools.fitting import forget, rounded, write
from windtunnel import gpus

HEAD = (
    "By what the bands of a GPU's kernels are multiplied, by class.",
    "Written by `python -m tools.exam KERNELBENCH --bands`; do not edit by hand.",
)
MARGIN = 0.8
LEAST = 6
"""Fewer programs say too little of a class."""
MOSTLY = 0.6
"""The part of its time from which on a program tells of a class of kernels, and not of others or of the host."""
LARGEST = 3.0
"""What is further off is not a matter of bands."""
Factors = dict[tuple[str, str], float]


class Needed(NamedTuple):
    """By what the band of a program would have to be multiplied to hold it; `name` is the class of its kernels."""

    program: str
    gpu: str
    name: str
    factor: float


def needed(outcomes: Iterable[tuple[Outcome, str]]) -> list[Needed]:
    """Of outcomes and their GPUs, those that kernels of one class take most of whose bands are not the GPU's own."""
    found = []
    for one, gpu in outcomes:
        name, part = max(one.parts, key=lambda pair: pair[1], default=("", 0.0))
        if one.band and name and part >= MOSTLY:
            found.append(Needed(one.model, gpus.find(gpu).key, name, abs(1.0 / one.ratio - 1.0) / one.band))
    return found


def held_by(some: Sequence[float]) -> float:
    """The factor that holds `MARGIN` of what is like these."""
    rank = min(len(some), ceil(MARGIN * (len(some) + 1)))
    return min(LARGEST, max(1.0 / LARGEST, rounded(sorted(some)[rank - 1])))


def factors(rows: Iterable[Needed]) -> Factors:
    """Those of the classes of each GPU that have enough programs."""
    classes: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in rows:
        classes[one.gpu, one.name].append(one.factor)
    return {key: held_by(some) for key, some in classes.items() if len(some) >= LEAST}


def remove() -> None:
    """Bands as they were fitted."""
    write("scales", HEAD, [])
    forget()


def calibrate(rows: Sequence[Needed]) -> None:
    """Write the factors, and print how many programs they hold, each of which the others have told of."""
    known = factors(rows)
    write("scales", HEAD, [("scale", {"gpu": gpu, "class": name, "factor": factor})
                           for (gpu, name), factor in sorted(known.items())])  # fmt: skip
    forget()

    def factor_of(known: Factors, one: Needed) -> float:
        return known.get((one.gpu, one.name), 1.0)

    print("GPU               programs  inside as they were   with factors   with those of other programs")
    left_out = {name: factors(one for one in rows if one.program != name) for name in {one.program for one in rows}}
    groups: dict[str, list[tuple[bool, bool, bool]]] = defaultdict(list)
    for one in rows:
        held = (
            one.factor <= 1.0,
            one.factor <= factor_of(known, one),
            one.factor <= factor_of(left_out[one.program], one),
        )
        groups[one.gpu].append(held)
        groups["all"].append(held)
    for gpu, some in sorted(groups.items()):
        before, after, others = np.mean(some, axis=0)
        print(f"{gpu:18} {len(some):7} {before:20.0%} {after:14.0%} {others:29.0%}")
