"""Fit what part of the memory's bandwidth kernels reach, cross-validate it, write both as data.

    python tools/calibration/calibrate_streams.py    # writes streams.toml and the bands of `streams`

A GPU's share is the median of its element-wise timings. A GPU is left out by giving it the share of another one of its
generation, or of the nearest other generation; the bands are the 80 % intervals of measured over predicted times, those
of layer norms and softmax included, of which nothing but the generation's share is fitted.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools" / "calibration")]

import tables  # noqa: E402
from calibrate_products import Array, Residuals, band_rows, report, update_bands, write  # noqa: E402

from understudy import gpus  # noqa: E402
from understudy.cost import CostModel  # noqa: E402
from understudy.cost.families import streams  # noqa: E402
from understudy.trace.operation import Signature  # noqa: E402

SOURCE = "NeuSight's published FP32 kernel timings (ASPLOS '25, MIT)"
NAMES = {"ln": "aten::native_layer_norm", "softmax": "aten::_softmax", "gelu": "aten::gelu", "addu": "aten::add"}
TWO_INPUTS = ("add", "mul", "div")
IMAGES = "fitted: timm's published results, eager, AMP, torch 1.12 to 2.9 (image_models.csv)"
FITTED_ELSEWHERE = (("ampere-86", "RTX3090", 0.92, IMAGES), ("ada", "RTX4090", 0.94, IMAGES))
"""GPUs of which only whole models are published: these shares, and those of classes, are where the parts of their steps
add up to the published times."""
CLASSES = (
    ("reduction", 0.55, IMAGES),
    ("pool", 0.65, IMAGES),
    ("pool backward", 0.25, IMAGES),
    ("layer norm", 0.85, IMAGES),
    ("layer norm backward", 0.24, IMAGES),
    ("norm backward", 0.86, IMAGES),
    ("softmax", 0.75, IMAGES),
    ("scan", 0.35, "assumed"),
    ("index", 0.6, "assumed"),
    ("embedding", 0.6, "assumed"),
    ("random", 0.75, "assumed"),
)


SOURCES = {
    "own GPU": "the kernels that the GPU's one share was fitted on, and its layer norms and softmax",
    "own generation": "another GPU of the generation gave the share",
    "borrowed": "another generation gave the share",
}


class Kernel(NamedTuple):
    """One timing: an operator on a table of FP32 numbers, and its microseconds."""

    operator: str
    rows: int
    columns: int
    us: float

    @property
    def signature(self) -> Signature:
        """The operator as a program calls it."""
        name = NAMES.get(self.operator, f"aten::{self.operator}")
        x, inputs = (self.rows, self.columns), 2 if self.operator in TWO_INPUTS else 1
        return Signature(name, (x,) * (inputs + 1), ("float32",) * (inputs + 1), inputs)

    @property
    def is_elementwise(self) -> bool:
        return self.operator not in ("ln", "softmax")


def read() -> dict[str, list[Kernel]]:
    """The table by GPU."""
    found: dict[str, list[Kernel]] = defaultdict(list)
    for row in tables.read("streams_fp32.csv.gz"):
        found[row["gpu"]].append(Kernel(row["operator"], int(row["rows"]), int(row["columns"]), float(row["us"])))
    return found


def ratios(kernels: list[Kernel], gpu: gpus.Gpu, share: float) -> Array:
    """Measured over predicted times if the GPU's share of its bandwidth is this."""
    cost = CostModel(gpu)
    found = []
    for kernel in kernels:
        price = cost.kernel(kernel.signature).duration_ns / 1000.0
        found.append(kernel.us / (price * streams.generation_share(gpu.generation, gpu.key)[0] / share))
    return np.array(found)


def fitted_share(kernels: list[Kernel], gpu: gpus.Gpu) -> float:
    """The share at which the median element-wise kernel takes what was measured."""
    now = streams.generation_share(gpu.generation, gpu.key)[0]
    ratio = ratios([kernel for kernel in kernels if kernel.is_elementwise], gpu, now)
    return float(now / np.median(ratio))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing: print the errors")
    only_check = parser.parse_args().check
    timings = read()
    shares = {key: round(fitted_share(kernels, gpus.find(key)), 3) for key, kernels in timings.items()}
    known = [(gpus.find(key).generation, key, share, f"fitted: {SOURCE}") for key, share in shares.items()]
    known += FITTED_ELSEWHERE
    residuals: dict[str, list[Residuals]] = {"own GPU": [], "own generation": [], "borrowed": []}
    print("GPU              distance           n  median     p90    bias  inside")
    for key, kernels in timings.items():
        gpu = gpus.find(key)
        others = [row for row in known if row[1] != key]
        sibling = next((row for row in others if row[0] == gpu.generation), None)
        nearest = streams.NEAREST.get(gpu.generation, "ampere")
        far = next((row for row in others if row[0] == nearest != gpu.generation), None)
        for distance, row in (("own GPU", ("", "", shares[key])), ("own generation", sibling), ("borrowed", far)):
            if row is not None:
                residuals[distance].append(Residuals(distance, key, ratios(kernels, gpu, float(row[2]))))
    for some in residuals.values():
        pooled = Residuals("", "", np.concatenate([one.ratio for one in some])).interval()
        for one in some:
            report(one, *pooled)
    if only_check:
        return
    tables: list[tuple[str, dict[str, Any]]] = [
        ("rate", {"generation": generation, "gpu": key, "share": share, "source": source})
        for generation, key, share, source in known
    ]
    tables += [("class", {"name": name, "share": share, "source": source}) for name, share, source in CLASSES]
    write("streams", "Kernels that memory bounds: the shares of cost/families/streams.py.", tables)
    update_bands(("streams",), band_rows("streams", residuals, SOURCES))


if __name__ == "__main__":
    main()
