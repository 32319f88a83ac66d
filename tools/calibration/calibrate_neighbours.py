"""Corrections by kernels that `make hardware` timed, each kernel left out of its own: `cost/neighbours.py`.

`tools.corpus.record` writes the tables. A call of several kernels counts for the longest where the others take less
than a fifth of it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from tools.calibration import calibrate_cache, calibrate_streams
from tools.corpus import recordings
from tools.corpus.tables import FOLDER
from tools.docs import figures
from tools.fitting import DATA, Residuals, Tables, band_row, forget, rounded, tables_of, update_bands
from tools.fitting import write as write_tables
from windtunnel import gpus
from windtunnel.cost import CostModel, files, flops, neighbours
from windtunnel.cost.families import streams
from windtunnel.gpus import Gpu
from windtunnel.operators.classes import bare, classify
from windtunnel.trace.operation import Signature

OTHERS = 0.2
"""The part of a call that other kernels may take for it to count for the longest."""
CUDA = (13, 0)
SHAPES = "few blocks"
NEAR = ("layer_norm", "softmax", "logsumexp", "sort", "topk", "embedding", "index_", neighbours.PLAIN)
"""Of that family, whose shapes lie far apart, the kinds that correct their neighbours: sums over odd lengths and norms
over channels did not hold for the shapes of others (`make exam`)."""
LEAST = 3
"""Fewer kernels of a kind say nothing of others of it."""
LARGE = neighbours.FULL
"""From two to this power on, elements do not fit into L2."""
SOURCE = {
    "own GPU": "each kernel left out of its own correction",
    "own generation": "fitted: the exam's errors on an H100 PCIe beside those on an H100 SXM",
}
FIGURES = {"elementwise": "memory"}
"""Rows of docs/figures/neighbours.json that are not named as their family is."""
FURTHER = 1.05
"""How many times as wide a band is on another GPU of the generation: half of KernelBench's programs are within 4.4 % on
an H100 PCIe, which no table is of, and within 4.2 % on an H100 SXM; nine tenths within 17 and 19 %."""


class KernelTiming(NamedTuple):
    """A kernel that was timed: its family and name in the table, its operator's class, and where it lies.

    `correction` is the natural logarithm of measured over modelled time without corrections, `us` the former.
    """

    family: str
    name: str
    class_name: str
    place: neighbours.Place
    correction: float
    us: float

    @property
    def is_plain(self) -> bool:
        """Whether the share of the bandwidth covers it."""
        return neighbours.PLAIN in self.place.kind


class LeftOut(NamedTuple):
    """A kernel, the correction that others of its kind give it, None where it is the only one, and how far they are."""

    timing: KernelTiming
    correction: float | None
    away: float

    @property
    def ratio(self) -> float:
        """Measured over modelled time with that correction."""
        return exp(self.timing.correction - (self.correction or 0.0))


WITH_BACKWARD = ", forward and backward"
"""How rows end that were timed with both passes."""
Table = tuple[Gpu, str, list[KernelTiming]]
"""The GPU of a table, its source in words, its kernels."""


def read(path: Path) -> Table:
    """A table: the GPU, its source in words, and its kernels."""
    head, *rows = recordings.lines(path)
    gpu = gpus.find(head["gpu"])
    cost = CostModel(gpu, CUDA)
    source = f"measured: make hardware, {gpu.name}, torch {head['torch']}, driver {head['driver']}, {head['date']}"
    found = []
    alone = {row["name"]: row for row in rows}
    for row in rows:
        signatures = [recordings.signature(one) for one in row["signatures"]]
        if row["name"].endswith(WITH_BACKWARD):
            row = without_forward(row, alone[row["name"].removesuffix(WITH_BACKWARD)])
        if (timing := timing_of(cost, row, signatures)) is not None:
            found.append(timing)
    return gpu, source, found


def without_forward(row: dict[str, Any], forward: dict[str, Any]) -> dict[str, Any]:
    """The backward pass of a row that was timed with its forward pass, which was timed alone too."""
    launches = [index for index in row["order"] if index >= 0]
    begun = len([index for index in forward["order"] if index >= 0])
    return row | {"order": launches[begun:], "us": row["us"] - forward["us"]}


def timing_of(cost: CostModel, row: dict[str, object], signatures: list[Signature]) -> KernelTiming | None:
    """The longest kernel of a call, with what is left of the measured time for it; None where others take much."""
    order, us = row["order"], row["us"]
    assert isinstance(order, list)
    assert isinstance(us, float)
    times = [cost.priced(one).duration_ns for one in signatures]
    launched = [index for index in order if index >= 0]
    if not launched:
        return None
    main = max(launched, key=lambda index: times[index])
    others = sum(times[index] for index in launched) - times[main]
    if others > OTHERS * (others + times[main]) or not times[main]:
        return None
    moved_bytes = sum(flops.bytes_moved(signatures[index]) for index in launched)
    signature = calibrate_cache.in_a_loop(signatures[main], moved_bytes)
    times[main] = cost.priced(signature).duration_ns
    operator = classify(signature.name)
    problem = cost.problem(signature, bare(signature.name), *cost.precision(signature))
    place = neighbours.place(problem, operator.name)
    if place is None or (row["family"] == SHAPES and not any(word in place.kind for word in NEAR)):
        return None
    taken = max(1000.0 * us - others, 0.2 * 1000.0 * us)
    left = log(taken / times[main])
    return KernelTiming(str(row["family"]), str(row["name"]), operator.name, place, left, taken / 1000.0)


def fit_rate(gpu: Gpu, source: str, timings: list[KernelTiming]) -> None:
    """The share of the bandwidth that kernels reach which go through large tensors as they lie: the family's, as of all
    GPUs, in place of a correction for them."""
    share, _ = streams.generation_share(gpu.generation, gpu.key)
    large = [one.correction for one in timings if one.is_plain and one.place.sizes[0] >= LARGE]
    row = {"generation": gpu.generation, "gpu": gpu.key, "share": share * exp(-median(large)), "source": source}
    kept = [(kind, one) for kind, one in tables_of(files.read("streams")) if one.get("gpu") != gpu.key]
    at = max(index for index, (kind, _) in enumerate(kept) if kind == "rate") + 1
    write_tables("streams", calibrate_streams.HEAD, [*kept[:at], ("rate", row), *kept[at:]])
    forget()


def left_out(timings: list[KernelTiming]) -> list[LeftOut]:
    """Each kernel with the correction that the others of its kind give it."""
    kinds: dict[str, list[KernelTiming]] = defaultdict(list)
    for one in timings:
        kinds[one.place.kind].append(one)
    found = []
    for one in timings:
        near = tuple(
            neighbours.Kernel(other.place.sizes, other.correction)
            for other in kinds[one.place.kind]
            if other.place.sizes != one.place.sizes or (not one.place.sizes and other is not one)
        )
        if not near:
            found.append(LeftOut(one, None, neighbours.FURTHEST))
            continue
        away = neighbours.nearest(one.place, near)
        found.append(LeftOut(one, neighbours.correction(one.place.sizes, near), away))
    return found


def remove() -> None:
    """Take every correction away."""
    for path in DATA.glob("neighbours_*.json"):
        path.unlink()
    forget()


def write(generation: str, found: list[Table]) -> None:
    """The data file of a generation: of each kernel the logarithms of its sizes, then its correction."""
    kinds: dict[str, list[list[float]]] = defaultdict(list)
    for _, _, timings in found:
        for one in timings:
            kinds[one.place.kind].append([*(round(size, 3) for size in one.place.sizes), round(one.correction, 4)])
    kinds = {kind: rows for kind, rows in kinds.items() if len(rows) >= LEAST}
    data = {"gpus": [gpu.key for gpu, _, _ in found], "sources": [source for _, source, _ in found]}
    text = json.dumps(data | {"kinds": dict(sorted(kinds.items()))}, indent=1)
    text = re.sub(r"\[\s+([-0-9.,\s]+?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    (DATA / f"neighbours_{generation}.json").write_text(text + "\n", encoding="utf-8")


def tables() -> list[Table]:
    """Every recorded table."""
    return [read(path) for path in sorted(FOLDER.glob("kernels_*.json.gz"))]


def show(timings: list[KernelTiming], record: bool = False) -> list[LeftOut]:
    """Errors by family without corrections and with those of other kernels, which become figures where asked."""
    every = left_out(timings)
    rows = {}
    print("family          kernels   without: median   p90    with, left out: median   p90   bias")
    for family in sorted({one.family for one in timings}):
        some = [one for one in every if one.timing.family == family]
        before = [abs(exp(-one.timing.correction) - 1.0) for one in some]
        after = [1.0 / one.ratio - 1.0 for one in some]
        errors = [abs(one) for one in after]
        print(
            f"{family:14} {len(some):8} {median(before):17.1%} {np.quantile(before, 0.9):6.1%} "
            f"{median(errors):23.1%} {np.quantile(errors, 0.9):6.1%} {median(after):+6.1%}"
        )
        rows[FIGURES.get(family, family.replace(" ", "-"))] = {
            "number": len(some), "before": percent(median(before)), "before-p90": round(100 * np.quantile(before, 0.9)),
            "median": percent(median(errors)), "p90": round(100 * np.quantile(errors, 0.9)),
            "bias": percent(median(after)),
        }  # fmt: skip
    if record:
        figures.record("neighbours", rows)
    return every


def percent(share: float) -> float:
    return round(100.0 * share, 1)


def band_rows(every: list[LeftOut]) -> Tables:
    """The bands of classes, beside a measured kernel: each residual counts as its distance makes it likely."""
    classes: dict[str, list[LeftOut]] = defaultdict(list)
    for one in every:
        classes[one.timing.class_name].append(one)
    rows: Tables = []
    for name, some in sorted(classes.items()):
        ratios = np.array([one.ratio for one in some])
        beside = np.abs(ratios - 1.0) / [neighbours.widened(one.away) for one in some]
        width = float(np.quantile(beside, 0.8))
        kind, row = band_row(f"neighbours {name}", Residuals("own GPU", "", ratios), SOURCE["own GPU"])
        far = {"distance": "own generation", "width": FURTHER * width, "source": SOURCE["own generation"]}
        rows += [(kind, row | {"width": width}), (kind, row | far)]
        rows += unmeasured(name, some) if name in neighbours.UNSURE else []
    return rows


def unmeasured(name: str, some: list[LeftOut]) -> Tables:
    """The bands of kinds of a class without measured kernels: those of all its kinds, without their corrections."""
    ratios, us = np.exp([one.timing.correction for one in some]), np.array([one.timing.us for one in some])
    source = "kernels of all kinds without corrections"
    kind, row = band_row(f"unmeasured {name}", Residuals("own GPU", "", ratios, us), source)
    return [(kind, row), (kind, row | further(row))]


def further(row: dict[str, Any]) -> dict[str, Any]:
    """What of a band is another on another GPU of the generation."""
    wider = {"width": FURTHER * row["width"], "widths": [rounded(FURTHER * width) for width in row["widths"]]}
    return wider | {"distance": "own generation", "source": SOURCE["own generation"]}


def plain_bands(timings: list[KernelTiming]) -> Tables:
    """The bands of kernels that the share of the bandwidth covers, by how long they take."""
    ratios, us = np.exp([one.correction for one in timings]), np.array([one.us for one in timings])
    source = "the kernels that the GPU's one share was fitted on"
    kind, row = band_row("neighbours plain", Residuals("own GPU", "", ratios, us), source)
    return [(kind, row), (kind, row | further(row))]


def calibrate() -> None:
    """Write corrections and bands, and print the errors."""
    remove()
    for table in tables():
        fit_rate(*table)
    measured = tables()
    found = [(gpu, source, [one for one in some if not one.is_plain]) for gpu, source, some in measured]
    for generation in {gpu.generation for gpu, _, _ in found}:
        write(generation, [table for table in found if table[0].generation == generation])
    rows = band_rows(show([one for _, _, timings in found for one in timings], record=True))
    rows += plain_bands([one for _, _, timings in measured for one in timings if one.is_plain])
    update_bands(tuple({row["family"] for _, row in rows}), rows)


def check(kind: str = "") -> None:
    """The errors by family, or of the kernels of the kinds that begin so, one by one."""
    timings = [one for _, _, some in tables() for one in some]
    if not kind:
        show(timings)
        return
    for found in left_out(timings):
        one, other = found.timing, found.correction
        if one.place.kind.startswith(kind):
            words = "" if other is None else f"{exp(other):7.2f} {1.0 / found.ratio - 1:+7.1%}"
            print(f"{one.place.kind:50} {one.name:64} {exp(one.correction):7.2f} {words}")
