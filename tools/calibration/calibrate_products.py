"""Fit the constants of matrix products on published kernel timings, cross-validate them, write both as data.

Shapes are left out by whole (n, k) pairs: a pair's products of all m are in one of five folds, and each fold is
predicted with constants that were fitted on the others. A generation is left out by predicting its GPU with another's
constants. The bands are the 80 % intervals of measured over predicted time in both. Where `make hardware` timed
products in 32 bits, short ones and later ones than the table's, those count as much as the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tools.corpus import recordings, tables
from tools.fitting import (
    Array,
    Mask,
    Residuals,
    Tables,
    band_rows,
    fold_of,
    left_out,
    loss_of,
    pooled,
    report_all,
    search,
    stored,
    update_bands,
    write,
)
from windtunnel import gpus
from windtunnel.cost import CostModel, flops
from windtunnel.cost.families import products
from windtunnel.cost.families.products import Arithmetic, Product, ProductConstants
from windtunnel.cost.power import sustained_share
from windtunnel.operators.classes import bare, classify
from windtunnel.trace.operation import Signature

CLIP = 0.3
MOST = {"tail": 1.0, "l2_share": 1.0, "read_bytes_per_clock": 128.0, "bandwidth_share": 0.95, "sharpness": 8.0}
"""Bounds of constants: a tail is a part of a wave; an SM's port to L2 is 64 bytes wide (A100 whitepaper), some two."""
LEAST = {"prologue_us": 0.2, "split_us": 1.0}
INPUTS = {"sglang": 6.0}
"""First operands that a library's timings went round, where those are several: seen on all four GPUs in products whose
first operand is the large one and fits L2 (1.13 to 2.1 times what the other two libraries' timings take there)."""
HARDWARE_CUDA = (13, 0)
HEAD = "Matrix products: the constants of cost/families/products.py."
ARRAYS = Arithmetic(np.maximum, np.minimum, np.ceil)


class TimingTable(NamedTuple):
    """A table of timings: the precision, its file and source, a GPU a generation, and constants that it cannot tell."""

    family: str
    precision: str
    item_bytes: int
    name: str
    source: str
    fitted: tuple[str, ...]
    fixed: dict[str, float]


TABLES = (
    TimingTable(
        "products",
        "bf16",
        2,
        "products_bf16.csv",
        "NVIDIA aiconfigurator's collected GEMM timings (Apache-2.0)",
        ("A100-SXM4-80GB", "H100-SXM5-80GB", "B200-180GB", "L40S"),
        {},
    ),
    TimingTable(
        "products fp32",
        "fp32",
        4,
        "products_fp32.csv.gz",
        "NeuSight's published FP32 kernel timings (ASPLOS '25, MIT)",
        ("P100-PCIe-16GB", "V100-PCIe-32GB", "T4", "A100-PCIe-80GB", "L4", "H100-SXM5-80GB", "P4"),
        {"floor_us": 4.0, "lag_us": 0.5, "power": 0.0},
    ),
)
"""What NeuSight timed includes the host's 30 to 50 us, so its table holds nothing shorter than 150 us and no floor."""
WITHOUT_TENSOR_CORES = {
    "pascal": ("volta",),
    "volta": ("turing",),
    "turing": ("volta",),
    "ampere": ("volta",),
    "ada": ("ampere",),
    "hopper": ("ampere",),
}
"""Whose FP32 constants stand in for a generation that is left out."""


class Timings(NamedTuple):
    """Times in microseconds of one GPU's products: what several libraries measured alike is one row, their median."""

    batch: Array
    m: Array
    n: Array
    k: Array
    inputs: Array
    us: Array
    hidden: float = 1.0

    def take(self, rows: Any) -> Timings:
        """Some of the rows."""
        batch, m, n, k, inputs, us, hidden = self
        return Timings(batch[rows], m[rows], n[rows], k[rows], inputs[rows], us[rows], hidden)

    def folds(self) -> list[int]:
        """The fold of each row, the same for all of a pair (n, k)."""
        return [fold_of(f"{n:.0f} {k:.0f}") for n, k in zip(self.n, self.k, strict=True)]


def read(table: TimingTable) -> dict[str, Timings]:
    """The table by GPU."""
    found: dict[str, dict[tuple[float, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in tables.read(table.name):
        shape = tuple(float(row.get(name) or 1) for name in ("batch", "m", "n", "k"))
        inputs = INPUTS.get(row.get("library", "").split("-")[0], 1.0)
        found[row["gpu"]][*shape, inputs].append(float(row["us"]))
    return {
        gpu: Timings(*np.array([(*shape, np.median(times)) for shape, times in shapes.items()], float).T)
        for gpu, shapes in found.items()
    }


def predict(timings: Timings, gpu: gpus.Gpu, constants: ProductConstants, table: TimingTable) -> Array:
    """The model's time of each row: `products.time_us` and the floor, for arrays."""
    of = products.rates(gpu, gpu.peak_flops[table.precision], constants)
    item = table.item_bytes
    product = Product(timings.batch, timings.m, timings.n, timings.k, item, 1.0, timings.inputs, timings.hidden)
    best = np.full(len(timings.us), np.inf)
    steps = np.ceil(timings.k * item / products.STEP_BYTES)
    for tile in products.TILES:
        memory = products.memory_us(product, tile, of, constants, ARRAYS)
        blocks = timings.batch * np.ceil(timings.m / tile[0]) * np.ceil(timings.n / tile[1])
        for fewer, split in products.FEWER_SPLITS:
            left_out = (fewer >= steps) | (blocks * split > 2 * of.sm_count) if split > 1 else np.zeros(len(best), bool)
            rows = np.flatnonzero(~left_out)
            if not rows.size:
                break
            some = Product(timings.batch[rows], timings.m[rows], timings.n[rows], timings.k[rows], item)
            found = products.candidate_us(some, tile, split, memory[rows], of, constants, ARRAYS)
            best[rows] = np.minimum(best[rows], found)
    written_us = products.written_us(product, of)
    return constants.floor_us + best * products.slowdown(product, of, constants) + written_us


def beside(table: TimingTable, generation: str) -> list[tuple[gpus.Gpu, Timings]]:
    """What `make hardware` timed of a generation's products in 32 bits, short ones among them; none of vectors."""
    found = []
    for path in sorted(tables.FOLDER.glob("kernels_*.json.gz")) if table.precision == "fp32" else ():
        head, *rows = recordings.lines(path)
        gpu = gpus.find(head["gpu"])
        if gpu.generation != generation:
            continue
        shapes = []
        for row in rows:
            signature = recordings.signature(row["signatures"][0])
            if len(row["signatures"]) == 1 and is_timed(signature, gpu):
                sizes = flops.product_sizes(signature, bare(signature.name), signature.shapes[: signature.inputs])
                shapes.append((*sizes, 1.0, row["us"]))
        wide = [shape for shape in shapes if min(shape[1:3]) > 1]
        found.append((gpu, Timings(*np.array(wide, float).T)._replace(hidden=0.0)))
    return found


def is_timed(signature: Signature, gpu: gpus.Gpu) -> bool:
    """Whether an operator is a product without tensor cores."""
    named = classify(signature.name).name in products.CLASSES
    return named and CostModel(gpu, HARDWARE_CUDA).precision(signature)[0] == "fp32"


def fit(
    timings: Timings, gpu: gpus.Gpu, table: TimingTable, others: Sequence[tuple[gpus.Gpu, Timings]] = ()
) -> ProductConstants:
    """The constants that meet the rows best, and those of other tables, which count as much together."""

    def loss(constants: ProductConstants) -> float:
        own = loss_of(predict(timings, gpu, constants, table), timings.us, CLIP)
        if not others:
            return own
        more = [loss_of(predict(some, other, constants, table), some.us, CLIP) for other, some in others]
        return own + float(np.mean(more))

    def move(of: ProductConstants, name: str, step: float) -> ProductConstants:
        value = max(LEAST.get(name, 0.0), getattr(of, name) * np.exp(step))
        return of._replace(**{name: float(min(MOST.get(name, np.inf), value))})

    fixed = set(table.fixed) - ({"floor_us"} if others else set())
    free = [name for name in ProductConstants._fields if name not in fixed]
    begin = ProductConstants()._replace(**table.fixed)
    found = search(begin, free, loss, move, least=0.02, grow=1.2, shrink=lambda step: 0.45 * step)
    return found._replace(**{name: float(f"{getattr(found, name):.4g}") for name in free})


def cross_validate(
    timings: Timings, gpu: gpus.Gpu, table: TimingTable, others: Sequence[tuple[gpus.Gpu, Timings]] = ()
) -> Residuals:
    """Every fold predicted with constants that have not seen its shapes, in any table."""

    def predicted(fold: int, rest: Mask, mine: Mask) -> Array:
        unseen = [(one, some.take(np.array(some.folds()) != fold)) for one, some in others]
        return predict(timings.take(mine), gpu, fit(timings.take(rest), gpu, table, unseen), table)

    return Residuals("own GPU", gpu.key, timings.us / left_out(timings.folds(), predicted), timings.us)


def cross_validate_beside(
    timings: Timings, gpu: gpus.Gpu, table: TimingTable, others: Sequence[tuple[gpus.Gpu, Timings]]
) -> list[Residuals]:
    """The same of the rows that `make hardware` timed."""
    by_fold = {}
    for fold in {one for _, some in others for one in some.folds()}:
        unseen = [(one, some.take(np.array(some.folds()) != fold)) for one, some in others]
        by_fold[fold] = fit(timings.take(np.array(timings.folds()) != fold), gpu, table, unseen)
    found = []
    for other, some in others:
        parts = [predict(some.take([at]), other, by_fold[fold], table) for at, fold in enumerate(some.folds())]
        found.append(Residuals("left out", other.key, some.us / np.concatenate(parts), some.us))
    return found


def leave_out(timings: dict[str, Timings], rows: dict[str, ProductConstants], table: TimingTable) -> list[Residuals]:
    """Each fitted GPU predicted as if its generation had no data: with the constants of the nearest other one."""
    keys = by_generation(rows)
    nearest = products.NEAREST_FP32 | WITHOUT_TENSOR_CORES if table.precision == "fp32" else products.NEAREST
    found = []
    for key in rows:
        gpu = gpus.find(key)
        near = next(keys[other] for other in nearest[gpu.generation] if other in keys)
        ratio = timings[key].us / predict_as(timings[key], gpu, rows[near], gpus.find(near), table)
        found.append(Residuals("borrowed", key, ratio, timings[key].us))
    return found


def by_generation(rows: dict[str, ProductConstants]) -> dict[str, str]:
    """The first fitted GPU of each generation."""
    found: dict[str, str] = {}
    for key in rows:
        found.setdefault(gpus.find(key).generation, key)
    return found


def predict_as(timings: Timings, gpu: gpus.Gpu, constants: ProductConstants, of: gpus.Gpu, table: TimingTable) -> Array:
    """The times on one GPU with the constants of another, whose power limit may be a different one."""
    clock = sustained_share(gpu, table.precision) / sustained_share(of, table.precision)
    return predict(timings, gpu, products.scaled(constants, 1.0, clock), table)


def siblings(timings: dict[str, Timings], rows: dict[str, ProductConstants], table: TimingTable) -> list[Residuals]:
    """The GPUs that share a generation and its kind of SM with a fitted one, with its constants."""
    keys = by_generation(rows)
    found = []
    for key in sorted(timings.keys() - rows.keys()):
        gpu = gpus.find(key)
        near = keys[gpu.generation]
        ratio = timings[key].us / predict_as(timings[key], gpu, rows[near], gpus.find(near), table)
        found.append(Residuals("own generation", key, ratio, timings[key].us))
    return found


SOURCES = {
    "own GPU": "cross-validated with pairs (n, k) left out",
    "own generation": "another GPU of the generation than the constants' own",
    "borrowed": "cross-validated with the generation left out",
}


def calibrate_table(table: TimingTable) -> tuple[Tables, Tables]:
    """Fit and cross-validate one table: the rows of products.toml and those of bands.toml."""
    timings = read(table)
    rows: dict[str, ProductConstants] = {}
    own: list[Residuals] = []
    found: Tables = []
    for key in table.fitted:
        of, gpu = timings[key], gpus.find(key)
        measured = beside(table, gpu.generation)
        rows[key] = fit(of, gpu, table, measured)
        own.append(cross_validate(of, gpu, table, measured))
        own[-1].report()
        error = float(np.median(np.abs(1 / own[-1].ratio - 1)))
        for residuals in cross_validate_beside(of, gpu, table, measured):
            residuals.report()
            if residuals.gpu == key:  # the short ones
                own[-1] = pooled([own[-1], residuals])._replace(gpu=key)
        head = {"generation": gpu.generation, "precision": table.precision, "gpu": key}
        tail = {"n": len(of.us), "median_error": error}
        source = f"fitted: {table.source}, {len(of.us)} products"
        if measured:
            source += f", and {sum(len(some.us) for _, some in measured)} that make hardware timed"
        shares = {"sustained_share": sustained_share(gpu, table.precision)}
        found.append(("row", {**head, **shares, **rows[key]._asdict(), **tail, "source": source}))
    left = {
        "own GPU": own,
        "own generation": siblings(timings, rows, table),
        "borrowed": leave_out(timings, rows, table),
    }
    for distance in ("own generation", "borrowed"):
        if left[distance]:
            report_all(left[distance])
    return found, band_rows(table.family, left, SOURCES)


def check(precision: str = "") -> None:
    """The errors of the constants as they are."""
    for table in (table for table in TABLES if precision in ("", table.precision)):
        for key, of in read(table).items():
            gpu = gpus.find(key)
            found = products.row_for(gpu, table.precision)
            assert found is not None
            row = found[0]
            ratio = of.us / predict_as(of, gpu, row.constants, gpus.find(row.gpu), table)
            Residuals("own GPU" if key == row.gpu else "own generation", key, ratio).report()


def calibrate(precision: str = "") -> None:
    """Fit, cross-validate and write all tables or one; rows of others stay."""
    some = [table for table in TABLES if precision in ("", table.precision)]
    mine = [table.precision for table in some]
    fitted: Tables = [("row", row) for row in stored("products").get("row", []) if row["precision"] not in mine]
    residuals: Tables = []
    for table in some:
        rows, bands = calibrate_table(table)
        fitted += rows
        residuals += bands
    write("products", HEAD, fitted)
    update_bands([table.family for table in some], residuals)
