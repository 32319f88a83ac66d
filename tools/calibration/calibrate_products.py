"""Fit the constants of matrix products on published kernel timings, cross-validate them, write both as data.

    python tools/calibration/calibrate_products.py            # writes products.toml and bands.toml of cost/data
    python tools/calibration/calibrate_products.py --check    # fits nothing: the error of the constants as they are

Shapes are left out by whole (n, k) pairs: a pair's products of all m are in one of five folds, and each fold is
predicted with constants that were fitted on the others. A generation is left out by predicting its GPU with another's
constants. The bands are the 80 % intervals of measured over predicted time in both.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src")]

import tables  # noqa: E402

from windtunnel import gpus  # noqa: E402
from windtunnel.cost.families import products  # noqa: E402
from windtunnel.cost.families.products import Arithmetic, Constants, Product  # noqa: E402

DATA = ROOT / "src" / "windtunnel" / "cost" / "data"
CALIBRATION = ROOT / "tools" / "calibration"
FOLDS = 5
CLIP = 0.3
MOST = {"tail": 1.0, "l2_share": 1.0, "read_bytes_per_clock": 128.0, "bandwidth_share": 0.95, "sharpness": 8.0}
"""Bounds of constants: a tail is a part of a wave; an SM's port to L2 is 64 bytes wide (A100 whitepaper), some two."""
LEAST = {"prologue_us": 0.2, "split_us": 1.0}
INPUTS = {"sglang": 6.0}
"""First operands that a library's timings went round, where those are several: seen on all four GPUs in products whose
first operand is the large one and fits L2 (1.13 to 2.1 times what the other two libraries' timings take there)."""
BANDS_HEAD = "Bands: the half-width around the predicted time that holds 80 % of the measured ones."
SINGLE = ("step", "compiled_step")
"""Tables of data files of which there is one."""
ARRAYS = Arithmetic(np.maximum, np.minimum, np.ceil)
Array = NDArray[np.float64]


class Table(NamedTuple):
    """A table of timings: the precision, its file and source, a GPU a generation, and constants that it cannot tell."""

    family: str
    precision: str
    item_bytes: int
    name: str
    source: str
    fitted: tuple[str, ...]
    fixed: dict[str, float]


TABLES = (
    Table(
        "products",
        "bf16",
        2,
        "products_bf16.csv",
        "NVIDIA aiconfigurator's collected GEMM timings (Apache-2.0)",
        ("A100-SXM4-80GB", "H100-SXM5-80GB", "B200-180GB", "L40S"),
        {},
    ),
    Table(
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

    def take(self, rows: Any) -> Timings:
        """Some of the rows."""
        return Timings(*(column[rows] for column in self))

    def folds(self) -> Array:
        """The fold of each row, the same for all of a pair (n, k)."""
        return np.array([zlib.crc32(f"{n:.0f} {k:.0f}".encode()) % FOLDS for n, k in zip(self.n, self.k, strict=True)])


def read(table: Table) -> dict[str, Timings]:
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


def predict(timings: Timings, gpu: gpus.Gpu, constants: Constants, table: Table) -> Array:
    """The model's time of each row: `products.time_us` and the floor, for arrays."""
    of = products.rates(gpu, gpu.peak_flops[table.precision], constants)
    item = table.item_bytes
    product = Product(timings.batch, timings.m, timings.n, timings.k, item, 1.0, timings.inputs)
    best = np.full(len(timings.us), np.inf)
    steps = np.ceil(timings.k * item / products.STEP_BYTES)
    for tile in products.TILES:
        memory = products.memory_us(product, tile, of, constants, ARRAYS)
        blocks = timings.batch * np.ceil(timings.m / tile[0]) * np.ceil(timings.n / tile[1])
        for split in products.SPLITS:
            left_out = (split > steps) | (blocks * split > 2 * of.sm_count) if split > 1 else np.zeros(len(best), bool)
            rows = np.flatnonzero(~left_out)
            if not rows.size:
                break
            some = Product(timings.batch[rows], timings.m[rows], timings.n[rows], timings.k[rows], item)
            found = products.candidate_us(some, tile, split, memory[rows], of, constants, ARRAYS)
            best[rows] = np.minimum(best[rows], found)
    return constants.floor_us + best * products.slowdown(product, of, constants)


def loss(timings: Timings, gpu: gpus.Gpu, constants: Constants, table: Table) -> float:
    """The mean of the logarithmic errors, of which those of outliers count no more than `CLIP`."""
    errors = np.abs(np.log(predict(timings, gpu, constants, table) / timings.us))
    return float(np.mean(np.minimum(errors, CLIP)))


def fit(timings: Timings, gpu: gpus.Gpu, table: Table) -> Constants:
    """Search along one constant after the other, with steps that grow where they help and shrink where not."""
    found = Constants()._replace(**table.fixed)
    best = loss(timings, gpu, found, table)
    step = {name: 0.3 for name in Constants._fields if name not in table.fixed}
    while max(step.values()) > 0.02:
        for name in step:
            if step[name] <= 0.02:
                continue
            for factor in (np.exp(step[name]), np.exp(-step[name])):
                value = min(MOST.get(name, np.inf), max(LEAST.get(name, 0.0), getattr(found, name) * factor))
                tried = found._replace(**{name: float(value)})
                error = loss(timings, gpu, tried, table)
                if error < best - 1e-6:
                    best, found = error, tried
                    step[name] *= 1.2
                    break
            else:
                step[name] *= 0.45
    return found._replace(**{name: float(f"{value:.4g}") for name, value in found._asdict().items()})


class Residuals(NamedTuple):
    """Measured over predicted times, and how they came about."""

    distance: str
    gpu: str
    ratio: Array

    def width(self) -> float:
        """The relative half-width around the predicted times that holds 80 % of the measured ones."""
        return float(np.quantile(np.abs(self.ratio - 1.0), 0.8))


def cross_validate(timings: Timings, gpu: gpus.Gpu, table: Table) -> Residuals:
    """Every fold predicted with constants that have not seen its shapes."""
    ratio = np.empty(len(timings.us))
    folds = timings.folds()
    for fold in range(FOLDS):
        constants = fit(timings.take(folds != fold), gpu, table)
        mine = timings.take(folds == fold)
        ratio[folds == fold] = mine.us / predict(mine, gpu, constants, table)
    return Residuals("own GPU", gpu.key, ratio)


def leave_out(timings: dict[str, Timings], rows: dict[str, Constants], table: Table) -> list[Residuals]:
    """Each fitted GPU predicted as if its generation had no data: with the constants of the nearest other one."""
    keys = by_generation(rows)
    nearest = products.NEAREST_FP32 | WITHOUT_TENSOR_CORES if table.precision == "fp32" else products.NEAREST
    found = []
    for key in rows:
        gpu = gpus.find(key)
        near = next(keys[other] for other in nearest[gpu.generation] if other in keys)
        ratio = timings[key].us / predict_as(timings[key], gpu, rows[near], gpus.find(near), table)
        found.append(Residuals("borrowed", key, ratio))
    return found


def by_generation(rows: dict[str, Constants]) -> dict[str, str]:
    """The first fitted GPU of each generation."""
    found: dict[str, str] = {}
    for key in rows:
        found.setdefault(gpus.find(key).generation, key)
    return found


def predict_as(timings: Timings, gpu: gpus.Gpu, constants: Constants, of: gpus.Gpu, table: Table) -> Array:
    """The times on one GPU with the constants of another, whose power limit may be a different one."""
    clock = gpu.sustained_share / of.sustained_share
    return predict(timings, gpu, products.scaled(constants, 1.0, clock), table)


def siblings(timings: dict[str, Timings], rows: dict[str, Constants], table: Table) -> list[Residuals]:
    """The GPUs that share a generation and its kind of SM with a fitted one, with its constants."""
    keys = by_generation(rows)
    found = []
    for key in sorted(timings.keys() - rows.keys()):
        gpu = gpus.find(key)
        near = keys[gpu.generation]
        ratio = timings[key].us / predict_as(timings[key], gpu, rows[near], gpus.find(near), table)
        found.append(Residuals("own generation", key, ratio))
    return found


def report(residuals: Residuals, width: float) -> None:
    """A line of the table; a row counts as inside where the band around its prediction holds its time."""
    errors = np.abs(1.0 / residuals.ratio - 1.0)
    inside = np.mean(np.abs(residuals.ratio - 1.0) <= width)
    print(
        f"{residuals.gpu:16} {residuals.distance:14} {len(errors):5} {np.median(errors):7.1%} "
        f"{np.quantile(errors, 0.9):7.1%} {np.median(1.0 / residuals.ratio) - 1.0:+7.1%} {inside:7.0%}",
        flush=True,
    )


def update_bands(families: tuple[str, ...], rows: list[tuple[str, dict[str, Any]]]) -> None:
    """Put these families' bands in place of their former ones."""
    kept = [row for row in stored("bands", "band") if row[1]["family"] not in families]
    every = sorted([*kept, *rows], key=lambda row: str(row[1]["family"]))
    write("bands", BANDS_HEAD, [*every, *((kind, stored_table("bands", kind)) for kind in SINGLE)])


def stored(name: str, kind: str) -> list[tuple[str, dict[str, Any]]]:
    """The tables of a data file as they are."""
    return [(kind, row) for row in tomllib.loads((DATA / f"{name}.toml").read_text(encoding="utf-8")).get(kind, [])]


def stored_table(name: str, kind: str) -> dict[str, Any]:
    """The one table of this name in a data file as it is."""
    found: dict[str, Any] = tomllib.loads((DATA / f"{name}.toml").read_text(encoding="utf-8"))[kind]
    return found


def line(value: Any) -> str:
    """A value as TOML has it."""
    return f'"{value}"' if isinstance(value, str) else f"{value:.4g}" if isinstance(value, float) else str(value)


def write(name: str, head: str, tables: list[tuple[str, dict[str, Any]]]) -> None:
    """A data file of tables."""
    lines = [f"# {head}", "# Written by `make calibrate`; do not edit by hand."]
    for kind, row in tables:
        head = f"[{kind}]" if kind in SINGLE else f"[[{kind}]]"
        lines += ["", head, *(f"{key} = {line(value)}" for key, value in row.items())]
    (DATA / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


SOURCES = {
    "own GPU": "cross-validated with pairs (n, k) left out",
    "own generation": "another GPU of the generation than the constants' own",
    "borrowed": "cross-validated with the generation left out",
}


def band_rows(
    family: str, residuals: dict[str, list[Residuals]], sources: dict[str, str] = SOURCES
) -> list[tuple[str, dict[str, Any]]]:
    """The bands: each GPU's own, all of them, a generation's, borrowed; one between both where no table has it."""
    rows: list[tuple[str, dict[str, Any]]] = []
    pooled = {
        distance: Residuals(distance, "", np.concatenate([one.ratio for one in some]))
        for distance, some in residuals.items()
        if some
    }
    for one in (*residuals["own GPU"], *pooled.values()):
        row: dict[str, Any] = {"family": family, "distance": one.distance}
        row |= {"gpu": one.gpu} if one.gpu else {}
        rows.append(("band", row | {"width": one.width(), "n": len(one.ratio), "source": sources[one.distance]}))
    if "own generation" not in pooled:
        near, far = (pooled[name].width() for name in ("own GPU", "borrowed"))
        between = {
            "family": family,
            "distance": "own generation",
            "width": (near + far) / 2,
            "n": 0,
            "source": "assumed: halfway between the GPU's own and another generation's: no table has two GPUs of one",
        }
        rows.append(("band", between))
    return rows


def calibrate(table: Table) -> tuple[list[tuple[str, dict[str, Any]]], list[tuple[str, dict[str, Any]]]]:
    """Fit and cross-validate one table: the rows of products.toml and those of bands.toml."""
    timings = read(table)
    rows, own, found = {}, [], []
    for key in table.fitted:
        of, gpu = timings[key], gpus.find(key)
        rows[key] = fit(of, gpu, table)
        own.append(cross_validate(of, gpu, table))
        report(own[-1], own[-1].width())
        error = float(np.median(np.abs(1 / own[-1].ratio - 1)))
        head = {"generation": gpu.generation, "precision": table.precision, "gpu": key}
        tail = {"n": len(of.us), "median_error": error}
        source = f"fitted: {table.source}, {len(of.us)} products"
        shares = {"sustained_share": gpu.sustained_share}
        found.append(("row", {**head, **shares, **rows[key]._asdict(), **tail, "source": source}))
    residuals = {
        "own GPU": own,
        "own generation": siblings(timings, rows, table),
        "borrowed": leave_out(timings, rows, table),
    }
    for distance in ("own generation", "borrowed"):
        if residuals[distance]:
            pooled = Residuals("", "", np.concatenate([one.ratio for one in residuals[distance]]))
            for one in residuals[distance]:
                report(one, pooled.width())
    return found, band_rows(table.family, residuals)


def check(table: Table) -> None:
    """The errors of the constants as they are."""
    for key, of in read(table).items():
        gpu = gpus.find(key)
        found = products.row_for(gpu, table.precision)
        assert found is not None
        row = found[0]
        ratio = of.us / predict_as(of, gpu, row.constants, gpus.find(row.gpu), table)
        residuals = Residuals("own GPU" if key == row.gpu else "own generation", key, ratio)
        report(residuals, residuals.width())


def calibrate_all(chosen: Sequence[Table] = TABLES) -> None:
    """Fit, cross-validate and write these tables; rows of others stay."""
    mine = [table.precision for table in chosen]
    fitted = [row for row in stored("products", "row") if row[1]["precision"] not in mine]
    residuals = []
    for table in chosen:
        rows, bands = calibrate(table)
        fitted += rows
        residuals += bands
    write("products", "Matrix products: the constants of cost/families/products.py.", fitted)
    update_bands(tuple(table.family for table in chosen), residuals)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="fit nothing: print the errors of the constants as they are"
    )
    names = [table.precision for table in TABLES]
    parser.add_argument("--precision", choices=names, help="fit this table alone, leave the others' rows")
    options = parser.parse_args()
    chosen = [table for table in TABLES if options.precision in (None, table.precision)]
    print("GPU              distance           n  median     p90    bias  inside")
    if options.check:
        for table in chosen:
            check(table)
        return
    calibrate_all(chosen)


if __name__ == "__main__":
    main()
