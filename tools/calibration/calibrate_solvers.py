"""Fit Fourier transforms and linear algebra on what people published, and write `solvers.toml` and their bands.

    python tools/calibration/calibrate_solvers.py            # a stage of make calibrate
    python tools/calibration/calibrate_solvers.py --check    # fits nothing: the error of each row

The tables are small (`fft_published.csv`, one card; `solvers_published.csv`, seven), so a constant is searched by steps
of 3 % that lower the mean of |log(predicted / published)|, and each row is predicted without it: transforms with their
length left out, decompositions with the row itself.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools" / "calibration")]

import tables  # noqa: E402
from calibrate_products import Residuals, report, update_bands, write  # noqa: E402

from understudy import gpus  # noqa: E402
from understudy.cost import CostModel, bands, operators  # noqa: E402
from understudy.cost.families import fft, linear_algebra  # noqa: E402
from understudy.trace.operation import Signature  # noqa: E402

HEAD = "Fourier transforms and linear algebra: the constants of cost/families/fft.py and linear_algebra.py."
STEP = 1.03
OPERATORS = {
    "cholesky": "aten::linalg_cholesky_ex", "qr": "aten::linalg_qr", "svd": "aten::_linalg_svd",
    "eig": "aten::linalg_eig", "eigh": "aten::_linalg_eigh",
}  # fmt: skip
ASSUMED = "assumed: no published time names its GPU"
CHAINS: dict[str, dict[str, Any]] = {
    "cholesky": {"floor_us": 25.0, "column_us": 0.7, "order": 1.0, "share": 0.1, "generation": "hopper"},
    "cholesky batched": {"floor_us": 30.0, "column_us": 1.0, "order": 1.0, "share": 0.1, "generation": "hopper"},
    "qr": {"floor_us": 40.0, "column_us": 2.5, "order": 1.0, "share": 0.4, "generation": "hopper"},
    "svd": {"floor_us": 280.0, "column_us": 0.033, "order": 2.6, "share": 0.3, "generation": "volta"},
    "svd batched": {"floor_us": 100.0, "column_us": 2.0, "order": 2.0, "share": 0.3, "generation": "volta"},
    "eig": {"floor_us": 400.0, "column_us": 100.0, "order": 1.0, "share": 0.1, "generation": "blackwell-120"},
    "eigh": {"floor_us": 10.0, "column_us": 2.0, "order": 1.0, "share": 0.1, "generation": "hopper"},
}
"""Where the search begins; `order` and, of all but Cholesky's, `share` stay as they are."""
UNSUPPORTED = {
    "lu": {"floor_us": 30.0, "column_us": 2.0, "order": 1.0, "share": 0.1, "generation": "hopper"},
    "triangular": {"floor_us": 15.0, "column_us": 0.4, "order": 1.0, "share": 0.3, "generation": "hopper"},
}
FFT: dict[str, float] = {"kernel_us": 2.4, "point_us": 0.0005, "single_share": 0.75, "several_share": 0.9}
Row = dict[str, str]


def transform(row: Row) -> Signature:
    """The signature of a published transform, complex to complex."""
    shape = (int(row["batch"]), int(row["length"]))
    detail = (("dim", "[1]"), ("normalization", "0"))
    return Signature("aten::_fft_c2c", (shape, shape), (row["dtype"],) * 2, 1, detail=detail)


def decomposition(row: Row) -> Signature:
    """The signature of a published decomposition."""
    batch = () if row["batch"] == "1" else (int(row["batch"]),)
    return Signature(OPERATORS[row["operator"]], ((*batch, int(row["m"]), int(row["n"])),), (row["dtype"],), 1)


def predicted_us(row: Row) -> float:
    """The time of a row as the model has it now."""
    signature = transform(row) if "length" in row else decomposition(row)
    return CostModel(gpus.find(row["gpu"]), (12, 8)).kernel(signature).duration_ns / 1000.0


def forget() -> None:
    fft.constants.cache_clear()
    linear_algebra.chain.cache_clear()


def chain_of(row: Row) -> str:
    """The chain that prices a row."""
    small = max(int(row["m"]), int(row["n"])) <= linear_algebra.MOST_IN_A_BLOCK
    own = f"{row['operator']} batched"
    together = row["operator"] == "cholesky" or small
    return own if int(row["batch"]) > 1 and own in CHAINS and together else row["operator"]


def search(constants: dict[str, Any], free: tuple[str, ...], rows: list[Row], limits: dict[str, float]) -> float:
    """Change the free constants in place until no step helps; the mean error that is left."""

    def loss() -> float:
        forget()
        return float(np.mean([abs(math.log(predicted_us(row) / float(row["us"]))) for row in rows]))

    best, stride = loss(), dict.fromkeys(free, 16)
    while any(stride.values()):
        for name in free:
            if not stride[name]:
                continue
            before = constants[name]
            for factor in (STEP ** stride[name], STEP ** -stride[name]):
                constants[name] = min(before * factor, limits.get(name, math.inf))
                error = loss()
                if error < best - 1e-6:
                    best = error
                    break
                constants[name] = before
            else:
                stride[name] //= 2
    forget()
    return best


def left_out(
    constants: dict[str, Any],
    free: tuple[str, ...],
    rows: list[Row],
    limits: dict[str, float],
    key: Callable[[Row], str],
) -> list[tuple[Row, float]]:
    """Published over predicted times, each row predicted with constants that have not seen the rows of its key."""
    found, fitted = [], dict(constants)
    for group in sorted({key(row) for row in rows}):
        others = [row for row in rows if key(row) != group]
        constants |= fitted
        if others:
            search(constants, free, others, limits)
        mine = [row for row in rows if key(row) == group]
        found += [(row, float(row["us"]) / predicted_us(row)) for row in mine]
    constants |= fitted
    forget()
    return found


def calibrate() -> None:
    """Fit, cross-validate and write."""
    data = operators.read("solvers") if (operators.DATA / "solvers.toml").exists() else {}
    data["fft"] = [dict(FFT)]
    data["chain"] = [{"name": name} | row for name, row in (CHAINS | UNSUPPORTED).items()]
    write("solvers", HEAD, [("fft", data["fft"][0]), *(("chain", row) for row in data["chain"])])
    operators.read.cache_clear()
    data = operators.read("solvers")
    transforms = tables.read("fft_published.csv")
    free = tuple(FFT)
    limits = {"single_share": 1.0, "several_share": 1.0, "share": 1.0}
    search(data["fft"][0], free, transforms, limits)
    seen = left_out(data["fft"][0], free, transforms, limits, lambda row: row["length"])
    data["fft"][0] |= {"n": len(transforms), "source": "fitted: cuFFT on an RTX 3080 (fft_published.csv)"}
    show("fft", [ratio for _, ratio in seen])
    by_kind: dict[str, list[float]] = defaultdict(list)
    published = tables.read("solvers_published.csv")
    for row in data["chain"]:
        mine = [one for one in published if chain_of(one) == row["name"]]
        if not mine:
            row |= {"n": 0, "source": ASSUMED}
            continue
        free = ("floor_us", "column_us", "share") if "cholesky" in row["name"] else ("floor_us", "column_us")
        if len(mine) > 1:
            search(row, free, mine, limits)
        else:
            search(row, ("column_us",), mine, limits)
        for _, ratio in left_out(row, free, mine, limits, lambda one: str(published.index(one))):
            by_kind[row["name"].split()[0]].append(ratio)
        row |= {"n": len(mine), "source": "fitted: times in PyTorch's pull requests and issues (solvers_published.csv)"}
    for kind, ratios in by_kind.items():
        show(kind, ratios)
    every = [ratio for ratios in by_kind.values() for ratio in ratios]
    show("all", every)
    write("solvers", HEAD, [("fft", data["fft"][0]), *(("chain", row) for row in data["chain"])])
    lengths = Residuals("own generation", "", np.array([ratio for _, ratio in seen]))
    rows = Residuals("borrowed", "", np.array(every))
    update_bands(
        ("fft", "linear algebra"),
        [
            ("band", {"family": "fft", "distance": "own generation", "width": lengths.width(), "n": len(seen),
                      "source": "cross-validated with the length left out, one card"}),
            ("band", {"family": "linear algebra", "distance": "borrowed", "width": rows.width(), "n": len(every),
                      "source": "cross-validated with the row left out"}),
        ],
    )  # fmt: skip
    operators.read.cache_clear()
    bands.band.cache_clear()
    forget()


def show(name: str, ratios: list[float]) -> None:
    """The line of a family's rows, each predicted without it, and the median factor."""
    residuals = Residuals("left out", name, np.array(ratios))
    report(residuals, residuals.width())
    factor = math.exp(float(np.median(np.abs(np.log(ratios)))))
    print(f"  {name}: median factor {factor:.2f}, worst {math.exp(float(np.max(np.abs(np.log(ratios))))):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fit nothing: print the error of each row")
    if not parser.parse_args().check:
        calibrate()
        return
    for row in (*tables.read("fft_published.csv"), *tables.read("solvers_published.csv")):
        what = f"fft of {row['length']}" if "length" in row else f"{row['operator']} {row['m']} x {row['n']}"
        us = predicted_us(row)
        times = f"{us:12.1f} of {row['us']:>10} us {us / float(row['us']):5.2f}"
        print(f"{what:20} batch {row['batch']:>6} {row['gpu']:16} {times}")


if __name__ == "__main__":
    main()
