"""Fit the cost model's efficiency curves on published figures, write them as data, and print the error.

`make accuracy` prints the error against published throughput.

FP32 curves come straight from kernel timings (three knots a class and GPU). Matrix products on tensor cores have
constants from kernel timings (`calibrate_products.py`); generations and precisions without timings borrow them, times
one share fitted on BERT-base's throughput. Convolutions on tensor cores have one number a precision and generation,
fitted on ResNet-50 (with channels last where that was published). What other layouts cost is fitted on ResNet-50
without channels last, what products of odd sizes keep on Transformer-XL base, whose scores are over 267,735 words.
BERT-large, Transformer-XL large, everything in FP32 and the PCIe and 40 GB variants of A100 are not fitted: they show
whether it holds.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

from tools.corpus import recordings, tables
from tools.corpus.recordings import IMAGES, Recording
from tools.fitting import forget, tables_of, verbatim, write
from windtunnel import gpus
from windtunnel.cost import CostModel, curves, files
from windtunnel.cost.power import sustained_share
from windtunnel.operators import classes
from windtunnel.trace.operation import Signature

if TYPE_CHECKING:
    from tools.corpus import training

HEAD = (
    "Efficiency curves: written by tools/calibration/calibrate_cost.py; do not edit by hand.",
    "roofline_us: knots of the roofline time; efficiency: roofline over real time; band: half-width.",
    "unaligned: what matrix products keep of it on tensor cores when sizes are no multiples of 16 bytes.",
    "product: what matrix products reach of the constants that they borrow (products.toml).",
    "convolution: what convolutions reach of the rate of products.",
)
CLASSES = {
    "linear": "matmul",
    "bmm": "bmm",
    "conv": "convolution",
    "add": "elementwise",
    "gelu": "activation",
    "softmax": "softmax",
    "ln": "norm",
}
GENERATIONS = {
    "NVIDIA A100-PCIE-40GB": "ampere",
    "NVIDIA A100 80GB PCIe": "ampere",
    "Tesla P100-PCIE-16GB": "pascal",
    "Tesla T4": "turing",
    "Tesla V100-PCIE-32GB": "volta",
}
BINS = {"10-100us": (10.0, 100.0), "100us-1ms": (100.0, 1000.0), ">1ms": (1000.0, 10000.0)}
FITTED_GPUS = {"volta": "V100-SXM2-16GB", "ampere": "A100-SXM4-80GB", "ampere-86": "RTX3090"}
FITTED = (
    ("product", "fp16", "bert-base SQuAD", ("volta",)),
    ("product", "tf32", "bert-base SQuAD", ("ampere", "ampere-86")),
    ("convolution", "fp16", "resnet50_v1.5 channels last", ("volta", "ampere")),
    ("convolution", "tf32", "resnet50_v1.5", ("ampere", "ampere-86")),
    ("unaligned", "fp16", "transformer-xl base", ("volta", "ampere", "ampere-86")),
    ("unaligned", "tf32", "transformer-xl base", ("ampere", "ampere-86")),
)
"""What is fitted, at which precision, on which model's throughput, for which generations: one number each."""
PUBLISHERS = {"lambdal": "Lambda", "NVIDIA": "NVIDIA", "huggingface": "timm"}
SHARES = ("unaligned", "product", "convolution")
FP32_SOURCE = "fitted: NeuSight's published FP32 kernel timings, {n} of {gpu}"


def bin_median(low: float, high: float, before: int, after: int) -> float:
    """The middle of a bin of roofline times, when the counts of its neighbours say how the density falls or rises."""
    slope = math.log((after + 1) / (before + 1)) / 2
    if abs(slope) < 1e-6:
        part = 0.5
    else:
        part = math.log(0.5 * (math.exp(slope) - 1) + 1) / slope
    return low * (high / low) ** part


def is_fitted(model: str, gpu: str, kind: str) -> bool:
    """Whether a row of published throughput is one that the curves were fitted on."""
    return any(
        (kind, model) == (precision, name) and gpu in map(FITTED_GPUS.get, generations)
        for _, precision, name, generations in FITTED
    )


def fp32_curves() -> list[dict[str, Any]]:
    """One curve for each operator class and GPU of the kernel timings."""
    rows = []
    for row in tables.read("kernel_efficiency_fp32.csv"):
        if row["op"] not in CLASSES or row["gpu"] not in GENERATIONS:
            continue
        counts = [int(row["<10us:n"]), *(int(row[f"{name}:n"]) for name in BINS), 0]
        knots = []
        for index, (name, (low, high)) in enumerate(BINS.items(), start=1):
            if counts[index] < 20:
                continue
            p10, p50, p90 = (float(row[f"{name}:{p}"]) for p in ("p10", "p50", "p90"))
            middle = bin_median(low, high, counts[index - 1], counts[index + 1])
            knots.append((middle, p50, min(0.5, (p90 - p10) / (2 * p50))))
        found = curve_row(CLASSES[row["op"]], "fp32", GENERATIONS[row["gpu"]], knots,
                          FP32_SOURCE.format(n=row["n"], gpu=row["gpu"]))  # fmt: skip
        share = sustained_share(gpus.find(row["gpu"]), "fp32")
        products = CLASSES[row["op"]] in ("matmul", "bmm", "convolution")
        rows.append(found | {"sustained_share": share} if products and share != 1.0 else found)
    return rows


def curve_row(
    operator_class: str, precision: str, generation: str, knots: list[tuple[float, float, float]], source: str
) -> dict[str, Any]:
    return {
        "class": operator_class,
        "precision": precision,
        "generation": generation,
        "roofline_us": [round(knot[0], 1) for knot in knots],
        "efficiency": [round(knot[1], 3) for knot in knots],
        "band": [round(knot[2], 2) for knot in knots],
        "source": source,
    }


def tensor_curve(operator_class: str, precision: str, generation: str, limit: float, source: str) -> dict[str, Any]:
    """A curve of the form limit * r / (r + half): half of the limit at 25 us of roofline time."""
    half = 25.0
    knots = [(r, limit * r / (r + half), 0.2) for r in (10.0, 30.0, 100.0, 300.0, 1000.0, 10000.0)]
    return curve_row(operator_class, precision, generation, knots, source)


def share_row(precision: str, generation: str, share: float, source: str) -> dict[str, Any]:
    return {"precision": precision, "generation": generation, "share": round(share, 3), "source": source}


class Fit:
    """The curves and the shares of products with odd sizes as far as they are known."""

    def __init__(self, curve_rows: list[dict[str, Any]], kept: dict[str, list[dict[str, Any]]] | None = None) -> None:
        self.curves = curve_rows
        self.shares: dict[str, list[dict[str, Any]]] = {kind: [] for kind in SHARES} | (kept or {})

    def write(self) -> None:
        """Write the data file and let the model read it anew."""
        data = tables_of({"curve": self.curves} | self.shares)
        write("curves", HEAD, [(kind, verbatim(row)) for kind, row in data])
        forget()

    def set(self, operator_class: str, precision: str, generation: str, value: float, source: str) -> None:
        """Take `value` as the efficiency of a class's large products, or as the share of those with odd sizes."""
        mine = (precision, generation)
        if operator_class in SHARES:
            rows = [row for row in self.shares[operator_class] if (row["precision"], row["generation"]) != mine]
            self.shares[operator_class] = [*rows, share_row(precision, generation, value, source)]
            return
        self.curves = [
            row
            for row in self.curves
            if (row["precision"], row["generation"]) != mine or row["class"] != operator_class
        ]
        self.curves.append(tensor_curve(operator_class, precision, generation, value, source))

    def search(self, operator_class: str, generation: str, row: training.TrainingRow) -> None:
        """Bisect until the predicted throughput is the published one: from 0.15 to 1.0 (odd sizes), 1.6, or 1.25.

        Beyond that, a convolution's largest tiles bound it, and the throughput tells its share no more.
        """
        low, high = 0.15, {"unaligned": 1.0, "product": 1.6, "convolution": 1.25}.get(operator_class, 1.05)
        where = next(name for start, name in PUBLISHERS.items() if row.source.startswith(start))
        source = f"fitted: {where}'s throughput of {row.model} on {row.card}, batch {row.batch}"
        run = recorded()[row.model, row.gpu, row.group]
        gpu = gpus.find(row.gpu)
        for _ in range(12):
            value = (low + high) / 2
            self.set(operator_class, row.kind, generation, value, source)
            self.write()
            slow = run.step_ns(CostModel(gpu, (11, 8))) > 1e6 * run.ms
            low, high = (value, high) if slow else (low, value)
        print(f"{operator_class:12} {row.kind} {generation:10} {value:.2f}")


@cache
def recorded() -> dict[tuple[str, str, str], Recording]:
    """The recorded steps of the training programs, by model, GPU, precision and batch."""
    return {(one.model, one.gpu, one.group): one for one in recordings.read(recordings.THROUGHPUTS)}


def of_images() -> dict[str, list[dict[str, Any]]]:
    """The shares that `calibrate_images` fitted."""
    rows = files.read("curves")
    return {kind: [row for row in rows.get(kind, ()) if row["source"] == IMAGES] for kind in SHARES}


def calibrate() -> None:
    """Fit all curves and shares but those of images, which stay as they are."""
    fit(Fit(fp32_curves(), of_images()))
    check()


def fit(found: Fit) -> None:
    """Add the tensor-core curves: for each a search for the one number that meets the published throughput."""
    from tools.corpus import training

    large_products(found, "fp16", "ampere")  # from the kernel timings
    large_products(found, "fp16", "ampere-86")
    for operator_class, precision, model, generations in FITTED:
        for generation in generations:
            key = FITTED_GPUS[generation]
            (row,) = [r for r in training.rows() if (r.model, r.gpu, r.kind) == (model, key, precision)]
            found.search(operator_class, generation, row)
            if operator_class == "product":
                large_products(found, precision, generation)
    found.curves += turing(found.curves)
    (share,) = [
        row["share"] for row in found.shares["product"] if (row["precision"], row["generation"]) == ("fp16", "volta")
    ]
    found.set("product", "fp16", "turing", share, "assumed: Volta's")
    found.write()


def large_products(found: Fit, precision: str, generation: str) -> None:
    """The curves of what runs like products and has no family yet, recurrent layers and attention: a large product's
    efficiency by the products' constants, and three quarters of it for the batched ones."""
    found.write()
    gpu, side = gpus.find(FITTED_GPUS[generation]), 8192
    dtype, detail = ("float32", (("tf32", 1),)) if precision == "tf32" else ("float16", ())
    signature = Signature("aten::mm", ((side, side),) * 3, (dtype,) * 3, 2, 2 * side**3, detail=detail)
    efficiency = (
        signature.flops / CostModel(gpu, (11, 8)).kernel(signature).duration_ns * 1e9 / gpu.peak_flops[precision]
    )
    for name, part in (("matmul", 1.0), ("bmm", 0.75)):
        source = f"fitted: the products' constants, a product of {side} on {gpu.key}"
        found.set(name, precision, generation, part * efficiency, source)
    found.write()


def turing(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turing's tensor cores: V100's curves; that T4 has 70 W is a fact of the card (`sustained_share`)."""
    return [
        {**row, "generation": "turing", "band": [0.3] * len(row["band"]), "source": "assumed: Volta's curve"}
        for row in rows
        if row["precision"] == "fp16" and row["generation"] == "volta"
    ]


def check() -> None:
    """Print the error of the curves against every bin of the kernel timings above 10 us."""
    errors = []
    for row in tables.read("kernel_efficiency_fp32.csv"):
        generation = GENERATIONS.get(row["gpu"])
        if row["op"] not in CLASSES or generation is None:
            continue
        operator_class = classes.tables().classes[CLASSES[row["op"]]]
        curve = curves.curve(operator_class.curve, "fp32", generation)
        for name, (low, high) in BINS.items():
            if int(row[f"{name}:n"]) < 20:
                continue
            times = [low * (high / low) ** (i / 20) for i in range(1, 20)]
            floor = 1000 * operator_class.floor_us
            values = sorted(1000 * us / curve.time_ns(1000 * us, floor, 1.0)[0] for us in times)
            errors.append(abs(values[len(values) // 2] / float(row[f"{name}:p50"]) - 1))
    errors.sort()
    print(
        f"kernel bins: {len(errors)}, median error {median(errors):.1%}, p90 {errors[int(0.9 * (len(errors) - 1))]:.1%}"
    )
