"""Fit transforms, linear algebra, scans, random numbers, gathers and embeddings on kernels that people published one by
one.

The tables are small (`fft_published.csv`, one card; `solvers_published.csv`, nine; `memory_bound_published.csv`,
five), so a constant is searched by steps of 3 % that lower the mean of |log(predicted / published)|, and each row is
predicted without it: transforms with their length left out, scans with their shape, gradients of embeddings with their
GPU, the others with the row itself.
It writes `solvers.toml`, some rows of `streams.toml`, and the bands of all of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tools import fitting
from tools.calibration.calibrate_streams import GRADIENT
from tools.calibration.calibrate_streams import HEAD as STREAMS_HEAD
from tools.corpus import tables
from tools.fitting import (
    Mask,
    Residuals,
    Tables,
    band_row,
    chosen,
    forget,
    forget_shares,
    tables_of,
    update_bands,
    write,
)
from windtunnel import gpus
from windtunnel.cost import CostModel, files
from windtunnel.cost.families import linear_algebra, streams
from windtunnel.trace.operation import Signature

HEAD = "Fourier transforms and linear algebra: the constants of cost/families/fft.py and linear_algebra.py."
STEP = 1.03
OPERATORS = {
    "cholesky": "aten::linalg_cholesky_ex", "qr": "aten::linalg_qr", "svd": "aten::_linalg_svd",
    "eig": "aten::linalg_eig", "eigh": "aten::_linalg_eigh", "lu": "aten::_linalg_solve_ex",
    "triangular": "aten::linalg_lu_solve",
}  # fmt: skip
CHAINS: dict[str, dict[str, float]] = {
    "cholesky": {"floor_us": 25.0, "matrix_us": 0.0, "column_us": 0.7, "order": 1.0, "share": 0.1},
    "cholesky batched": {"floor_us": 30.0, "matrix_us": 0.0, "column_us": 1.0, "order": 1.0, "share": 0.1},
    "qr": {"floor_us": 30.0, "matrix_us": 0.0, "column_us": 2.5, "order": 1.0, "share": 0.4},
    "qr small": {"floor_us": 30.0, "matrix_us": 20.0, "column_us": 1.0, "order": 1.0, "share": 0.4},
    "svd": {"floor_us": 200.0, "matrix_us": 200.0, "column_us": 0.033, "order": 2.6, "share": 0.3},
    "svd batched": {"floor_us": 200.0, "matrix_us": 0.4, "column_us": 1.0, "order": 2.0, "share": 0.3},
    "eig": {"floor_us": 200.0, "matrix_us": 400.0, "column_us": 100.0, "order": 1.0, "share": 0.1},
    "eigh": {"floor_us": 100.0, "matrix_us": 5.0, "column_us": 5.0, "order": 1.0, "share": 0.1},
    "lu": {"floor_us": 60.0, "matrix_us": 0.0, "column_us": 2.0, "order": 1.0, "share": 0.1},
    "triangular": {"floor_us": 15.0, "matrix_us": 0.0, "column_us": 0.4, "order": 1.0, "share": 0.3},
}
"""Where the search begins; what is 0, `order` and, of all but Cholesky's, `share` stay as they are."""
FFT: dict[str, float] = {"kernel_us": 2.4, "point_us": 0.0005, "single_share": 0.75, "several_share": 0.9}
SCANS = {"sums": "cumsum", "logarithms": "logcumsumexp", "places": "cummin"}
"""A word in the operators of each kind of scan."""
TURN = {"wait": 2000.0, "wait_step": 60.0, "turn": 600.0, "turn_step": 60.0}
RANDOM = {"uniform": 2.4, "normal": 1.7, "bernoulli": 0.8}
"""Random numbers that one SM makes in a cycle, to begin with."""
MOST = {"single_share": 1.0, "several_share": 1.0, "share": 1.0, "order": 1.0}
"""No kernel moves more than the bandwidth, and the way along a row does not grow faster than it."""
PUBLISHED = "fitted: times in pull requests and issues ({})"
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


def memory_bound(row: Row) -> list[Signature]:
    """The signatures of a published scan, gather or generator of random numbers: of each kernel of the call."""
    inputs, outputs = (
        [tuple(int(side) for side in shape.split("x")) for shape in row[name].split()] for name in ("inputs", "outputs")
    )
    dtypes = tuple(row["dtypes"].split())
    return [Signature(name, (*inputs, *outputs), dtypes, len(inputs)) for name in row["operator"].split()]


def predicted_us(row: Row) -> float:
    """The time of a row as the model has it now."""
    model = CostModel(gpus.find(row["gpu"]), (12, 8))
    if "inputs" in row:
        return sum(model.kernel(one).duration_ns for one in memory_bound(row)) / 1000.0
    return model.kernel(transform(row) if "length" in row else decomposition(row)).duration_ns / 1000.0


def chain_of(row: Row) -> str:
    """The chain that prices a row."""
    kind = row["operator"]
    _, form = linear_algebra.form_of(kind, int(row["batch"]), int(row["m"]), int(row["n"]))
    return f"{kind} {form}" if f"{kind} {form}" in CHAINS else kind


def search(constants: dict[str, Any], free: Sequence[str], rows: Sequence[Row]) -> None:
    """Change the free constants in place until no step helps."""

    def loss(tried: dict[str, Any]) -> float:
        constants.update(tried)
        forget_shares()
        return float(np.mean([abs(math.log(predicted_us(row) / float(row["us"]))) for row in rows]))

    def move(found: dict[str, Any], name: str, stride: int) -> dict[str, Any]:
        return found | {name: min(found[name] * STEP**stride, MOST.get(name, math.inf))}

    begin: dict[str, Any] = dict(constants)
    found = fitting.search(begin, free, loss, move, 16)
    constants.update(found)
    forget_shares()


def left_out(constants: dict[str, Any], free: Sequence[str], rows: list[Row], key: Callable[[Row], str]) -> list[float]:
    """Published over predicted times, each row predicted with constants that have not seen the rows of its key."""
    fitted = dict(constants)

    def predicted(_: str, others: Mask, mine: Mask) -> list[float]:
        constants.update(fitted)
        if others.any():
            search(constants, free, chosen(rows, others))
        return [predicted_us(row) for row in chosen(rows, mine)]

    times = fitting.left_out([key(row) for row in rows], predicted)
    constants.update(fitted)
    forget_shares()
    return [float(row["us"]) / us for row, us in zip(rows, times.tolist(), strict=True)]


def transforms(data: dict[str, Any]) -> list[float]:
    """Fit the transforms; their residuals."""
    rows, free = tables.read("fft_published.csv"), tuple(FFT)
    search(data["fft"][0], free, rows)
    seen = left_out(data["fft"][0], free, rows, lambda row: row["length"])
    data["fft"][0] |= {"n": len(rows), "source": "fitted: cuFFT on an RTX 3080 (fft_published.csv)"}
    show("fft", seen)
    return seen


def chains(data: dict[str, Any]) -> list[float]:
    """Fit the decompositions and solvers; their residuals."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    published = tables.read("solvers_published.csv")
    for row in data["chain"]:
        mine = [one for one in published if chain_of(one) == row["name"]]
        free = tuple(name for name in ("floor_us", "matrix_us", "column_us") if row[name])
        free += ("share",) if "cholesky" in row["name"] else ()
        search(row, free if len(mine) > 1 else ("column_us",), mine)
        by_kind[row["name"].split()[0]] += left_out(row, free, mine, lambda one: str(published.index(one)))
        row |= {"n": len(mine), "source": PUBLISHED.format("solvers_published.csv")}
    for kind, ratios in by_kind.items():
        show(kind, ratios)
    every = [ratio for ratios in by_kind.values() for ratio in ratios]
    show("linear algebra", every)
    return every


def memory_bound_kernels() -> dict[str, list[float]]:
    """Fit scans, random numbers and gathers, and write them; their residuals."""
    data = files.read("streams")
    data.pop("chain", None)
    data["scan"] = [{"name": name, **TURN} for name in SCANS]
    data["embedding"] = [dict(GRADIENT)]
    data["generator"] = [{"name": name, "elements_per_clock": rate} for name, rate in RANDOM.items()]
    by_class: dict[str, list[Row]] = defaultdict(list)
    for row in tables.read("memory_bound_published.csv"):
        by_class[row["class"]].append(row)
    share = {row["name"]: row for row in data["class"]}
    long_rows = [row for row in by_class["scan"] if "x" not in row["inputs"]]
    search(share["scan"], ("share",), long_rows)
    search(share["index"], ("share",), by_class["index"])
    gathers = [row for row in by_class["embedding"] if row["operator"] == "aten::embedding"]
    gradients = [row for row in by_class["embedding"] if row not in gathers]
    search(share["embedding"], ("share",), gathers)
    search(data["embedding"][0], tuple(GRADIENT), gradients)

    def shape(row: Row) -> str:
        return row["inputs"] + row["dtypes"]

    of_gradients = {
        what: left_out(data["embedding"][0], tuple(GRADIENT), gradients, key)
        for what, key in (("GPU", lambda row: row["gpu"]), ("shape", shape))
    }
    found = {
        "scans": left_out(share["scan"], ("share",), long_rows, lambda row: row["gpu"]),
        "index": left_out(share["index"], ("share",), by_class["index"], shape),
        "embedding": left_out(share["embedding"], ("share",), gathers, shape) + of_gradients["GPU"],
        "random": [],
    }
    for constants in data["scan"]:
        word, free = SCANS[constants["name"]], tuple(TURN)
        mine = [row for row in by_class["scan"] if "x" in row["inputs"] and word in row["operator"]]
        search(constants, free, mine)
        found["scans"] += left_out(constants, free, mine, lambda row: row["inputs"])
    for constants in data["generator"]:
        mine = [row for row in by_class["random"] if streams.generator_of(row["operator"]) == constants["name"]]
        search(constants, ("elements_per_clock",), mine)
        found["random"] += left_out(constants, ("elements_per_clock",), mine, shape)
    source = PUBLISHED.format("memory_bound_published.csv")
    shares = (share["scan"], share["index"], share["embedding"])
    for row in (*shares, *data["scan"], *data["embedding"], *data["generator"]):
        row |= {"source": source}
    for name, ratios in (found | {f"gradient, {what}": one for what, one in of_gradients.items()}).items():
        show(name, ratios)
    write("streams", STREAMS_HEAD, tables_of(data))
    return found


def calibrate() -> None:
    """Fit, cross-validate and write."""
    rows = [("chain", {"name": name} | row) for name, row in CHAINS.items()]
    write("solvers", HEAD, [("fft", dict(FFT)), *rows])
    forget()
    data = files.read("solvers")
    residuals = {"fft": transforms(data), "linear algebra": chains(data)}
    write("solvers", HEAD, tables_of(data))
    residuals |= memory_bound_kernels()
    sources = {"fft": "cross-validated with the length left out, one card"}
    sources["scans"] = "cross-validated with the shape left out"
    sources["embedding"] = "cross-validated with the shape left out, gradients with the GPU left out"
    found: Tables = []
    for family, ratios in residuals.items():
        one = Residuals("own generation" if family == "fft" else "borrowed", "", np.array(ratios))
        found.append(band_row(family, one, sources.get(family, "cross-validated with the row left out")))
    update_bands(list(residuals), found)


def show(name: str, ratios: list[float]) -> None:
    """The line of a family's rows, each predicted without it, and the median factor."""
    Residuals("left out", name, np.array(ratios)).report()
    factor = math.exp(float(np.median(np.abs(np.log(ratios)))))
    print(f"  {name}: median factor {factor:.2f}, worst {math.exp(float(np.max(np.abs(np.log(ratios))))):.2f}")


def check() -> None:
    """The error of each row."""
    for name in ("fft_published.csv", "solvers_published.csv", "memory_bound_published.csv"):
        for row in tables.read(name):
            if "inputs" in row:
                what = f"{row['operator']} {row['inputs']} {row['dtypes'].split()[0]}"
            else:
                kind = f"fft of {row['length']}" if "length" in row else f"{row['operator']} {row['m']} x {row['n']}"
                what = f"{kind} batch {row['batch']}"
            us = predicted_us(row)
            print(f"{what:48} {row['gpu']:16} {us:12.1f} of {row['us']:>10} us {us / float(row['us']):5.2f}")
