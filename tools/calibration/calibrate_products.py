"""Fit the constants of matrix products on published kernel timings, cross-validate them, write both as data.

    python tools/calibration/calibrate_products.py            # writes products.toml and bands.toml of cost/data
    python tools/calibration/calibrate_products.py --check    # fits nothing: the error of the constants as they are

Shapes are left out by whole (n, k) pairs: a pair's products of all m are in one of five folds, and each fold is
predicted with constants that were fitted on the others. A generation is left out by predicting its GPU with another's
constants. The bands are the 80 % intervals of measured over predicted time in both.
"""

from __future__ import annotations

import argparse
import csv
import sys
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src")]

from understudy import gpus  # noqa: E402
from understudy.cost.families import products  # noqa: E402
from understudy.cost.families.products import Arithmetic, Constants, Product  # noqa: E402

DATA = ROOT / "src" / "understudy" / "cost" / "data"
TABLE = ROOT / "tools" / "calibration" / "products_bf16.csv"
SOURCE = "NVIDIA aiconfigurator's collected GEMM timings (Apache-2.0)"
FOLDS = 5
SAMPLE = 600
"""Products that a fit sees of a GPU's: the constants are 13 and the evaluations thousands."""
CLIP = 0.6
MOST = {"tail": 1.0, "read_bytes_per_clock": 128.0}
"""Bounds of constants: a tail is a part of a wave; an SM's port to L2 is 64 bytes wide (A100 whitepaper), some two."""
ARRAYS = Arithmetic(np.maximum, np.minimum, np.ceil)
Array = NDArray[np.float64]


class Timings(NamedTuple):
    """Times in microseconds of the products of one GPU: shapes measured by several libraries once, by their median."""

    m: Array
    n: Array
    k: Array
    us: Array

    def take(self, rows: Any) -> Timings:
        """Some of the rows."""
        return Timings(*(column[rows] for column in self))

    def folds(self) -> Array:
        """The fold of each row, the same for all of a pair (n, k)."""
        return np.array([zlib.crc32(f"{n:.0f} {k:.0f}".encode()) % FOLDS for n, k in zip(self.n, self.k, strict=True)])


def read() -> dict[str, Timings]:
    """The table by GPU."""
    found: dict[str, dict[tuple[int, int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    with TABLE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row["gpu"]][int(row["m"]), int(row["n"]), int(row["k"])].append(float(row["us"]))
    return {
        gpu: Timings(*np.array([(*shape, np.median(times)) for shape, times in shapes.items()], float).T)
        for gpu, shapes in found.items()
    }


def predict(timings: Timings, gpu: gpus.Gpu, constants: Constants) -> Array:
    """The model's time of each row: `products.time_us` and the floor, for arrays."""
    of = products.rates(gpu, gpu.peak_flops["bf16"], constants)
    product = Product(1.0, timings.m, timings.n, timings.k, 2)
    best = np.full(len(timings.us), np.inf)
    steps = np.ceil(timings.k * 2 / products.STEP_BYTES)
    for tile in products.TILES:
        memory = products.memory_us(product, tile, of, constants, ARRAYS)
        blocks = np.ceil(timings.m / tile[0]) * np.ceil(timings.n / tile[1])
        for split in products.SPLITS:
            left_out = (split > steps) | (blocks * split > 2 * of.sm_count) if split > 1 else np.zeros(len(best), bool)
            rows = np.flatnonzero(~left_out)
            if not rows.size:
                break
            some = Product(1.0, timings.m[rows], timings.n[rows], timings.k[rows], 2)
            found = products.candidate_us(some, tile, split, memory[rows], of, constants, ARRAYS)
            best[rows] = np.minimum(best[rows], found)
    return constants.floor_us + best * products.slowdown(product, of, constants)


def loss(timings: Timings, gpu: gpus.Gpu, constants: Constants) -> float:
    """The mean of the logarithmic errors, of which those of outliers count no more than `CLIP`."""
    errors = np.abs(np.log(predict(timings, gpu, constants) / timings.us))
    return float(np.mean(np.minimum(errors, CLIP)))


def fit(timings: Timings, gpu: gpus.Gpu, seed: int) -> Constants:
    """Search along one constant after the other, with steps that grow where they help and shrink where not."""
    some = timings.take(np.random.default_rng(seed).permutation(len(timings.us))[:SAMPLE])
    found = Constants()
    best = loss(some, gpu, found)
    step = dict.fromkeys(Constants._fields, 0.3)
    while max(step.values()) > 0.02:
        for name in Constants._fields:
            if step[name] <= 0.02:
                continue
            for factor in (np.exp(step[name]), np.exp(-step[name])):
                value = min(MOST.get(name, np.inf), getattr(found, name) * factor)
                tried = found._replace(**{name: float(value)})
                error = loss(some, gpu, tried)
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

    def interval(self) -> tuple[float, float]:
        """The 10th and the 90th percentile."""
        return float(np.quantile(self.ratio, 0.1)), float(np.quantile(self.ratio, 0.9))


def cross_validate(timings: Timings, gpu: gpus.Gpu) -> Residuals:
    """Every fold predicted with constants that have not seen its shapes."""
    ratio = np.empty(len(timings.us))
    folds = timings.folds()
    for fold in range(FOLDS):
        constants = fit(timings.take(folds != fold), gpu, fold)
        mine = timings.take(folds == fold)
        ratio[folds == fold] = mine.us / predict(mine, gpu, constants)
    return Residuals("own GPU", gpu.key, ratio)


def leave_out(timings: dict[str, Timings], rows: dict[str, Constants]) -> list[Residuals]:
    """Each GPU predicted as if its generation had no data: with the constants of the nearest other one."""
    keys = {gpus.find(key).generation: key for key in rows}
    found = []
    for key, of in timings.items():
        gpu = gpus.find(key)
        near = next(keys[other] for other in products._NEAREST[gpu.generation] if other in keys)
        found.append(Residuals("borrowed", key, of.us / predict(of, gpu, rows[near])))
    return found


def report(residuals: Residuals, low: float, high: float) -> None:
    """A line of the table; a product counts as inside where the band around its prediction holds its time."""
    errors = np.abs(1.0 / residuals.ratio - 1.0)
    inside = np.mean((residuals.ratio >= low) & (residuals.ratio <= high))
    print(
        f"{residuals.gpu:16} {residuals.distance:9} {len(errors):5} {np.median(errors):7.1%} "
        f"{np.quantile(errors, 0.9):7.1%} {np.median(1.0 / residuals.ratio) - 1.0:+7.1%} {inside:7.0%}",
        flush=True,
    )


def line(value: Any) -> str:
    """A value as TOML has it."""
    return f'"{value}"' if isinstance(value, str) else f"{value:.4g}" if isinstance(value, float) else str(value)


def write(name: str, head: str, tables: list[tuple[str, dict[str, Any]]]) -> None:
    """A data file of tables."""
    lines = [f"# {head}", "# Written by tools/calibration/calibrate_products.py; do not edit by hand."]
    for kind, row in tables:
        lines += ["", f"[[{kind}]]", *(f"{key} = {line(value)}" for key, value in row.items())]
    (DATA / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def band_rows(own: list[Residuals], borrowed: list[Residuals]) -> list[tuple[str, dict[str, Any]]]:
    """The bands: a GPU's own, all of them, a generation's (between both, since no table has two of one), borrowed."""
    pooled = Residuals("own GPU", "", np.concatenate([one.ratio for one in own]))
    far = Residuals("borrowed", "", np.concatenate([one.ratio for one in borrowed]))
    rows: list[tuple[str, dict[str, Any]]] = []
    source = "cross-validated with pairs (n, k) left out"
    for one in (*own, pooled, far):
        low, high = one.interval()
        row: dict[str, Any] = {"family": "products", "distance": one.distance}
        row |= {"gpu": one.gpu} if one.gpu else {}
        row |= {"low": low, "high": high, "n": len(one.ratio)}
        row["source"] = source if one.distance == "own GPU" else "cross-validated with the generation left out"
        rows.append(("band", row))
    between = {
        "family": "products",
        "distance": "own generation",
        "low": (pooled.interval()[0] + far.interval()[0]) / 2,
        "high": (pooled.interval()[1] + far.interval()[1]) / 2,
        "n": 0,
        "source": "assumed: halfway between the GPU's own and another generation's, since no table has two GPUs of one",
    }
    return [*rows, ("band", between)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="fit nothing: print the errors of the constants as they are"
    )
    check = parser.parse_args().check
    timings = read()
    print("GPU              distance      n  median     p90    bias  inside")
    if check:
        for key, of in timings.items():
            gpu = gpus.find(key)
            row = products.fitted()[gpu.generation, "bf16"]
            found = Residuals("own GPU", key, of.us / predict(of, gpu, row.constants))
            report(found, *found.interval())
        return
    rows, own, tables = {}, [], []
    for key, of in timings.items():
        gpu = gpus.find(key)
        rows[key] = fit(of, gpu, 0)
        own.append(cross_validate(of, gpu))
        report(own[-1], *own[-1].interval())
        low, high = own[-1].interval()
        head = {"generation": gpu.generation, "precision": "bf16", "gpu": key, "sustained_share": gpu.sustained_share}
        tail = {
            "n": len(of.us),
            "median_error": float(np.median(np.abs(1 / own[-1].ratio - 1))),
            "low": low,
            "high": high,
        }
        tables.append(
            ("row", {**head, **rows[key]._asdict(), **tail, "source": f"fitted: {SOURCE}, {len(of.us)} products"})
        )
    borrowed = leave_out(timings, rows)
    pooled = np.concatenate([one.ratio for one in borrowed])
    for one in borrowed:
        report(one, float(np.quantile(pooled, 0.1)), float(np.quantile(pooled, 0.9)))
    write("products", "Matrix products: the constants of cost/families/products.py.", tables)
    write("bands", "Bands: percentiles 10 and 90 of measured over predicted time.", band_rows(own, borrowed))


if __name__ == "__main__":
    main()
