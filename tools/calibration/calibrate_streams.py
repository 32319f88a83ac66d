"""Fit what part of the memory's bandwidth kernels reach, cross-validate it, write both as data.

A GPU's share is the median of its element-wise timings. A GPU is left out by giving it the share of another one of its
generation, or of the nearest other generation; the bands are the 80 % intervals of measured over predicted times, those
of layer norms and softmax included, of which nothing but the generation's share is fitted.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from tools.calibration import calibrate_cache
from tools.corpus import tables
from tools.fitting import (
    Array,
    Residuals,
    band_rows,
    forget_shares,
    pooled,
    report_all,
    report_durations,
    tables_of,
    update_bands,
    write,
)
from windtunnel import gpus
from windtunnel.cost import CostModel, files
from windtunnel.cost.families import streams
from windtunnel.trace.operation import Signature

SOURCE = "NeuSight's published FP32 kernel timings (ASPLOS '25, MIT)"
NAMES = {"ln": "aten::native_layer_norm", "softmax": "aten::_softmax", "gelu": "aten::gelu", "addu": "aten::add"}
TWO_INPUTS = ("add", "mul", "div")
BEGIN = 0.85
"""The share that the search for a GPU's begins with."""
ASSUMED = (("scan", 0.6), ("index", 0.6), ("embedding", 0.6), ("random", 0.75))
"""Shares of classes that no table here has: `calibrate_published` and `calibrate_images` fit most of them."""
GRADIENT: dict[str, float] = {"few_us": 10.0, "index_cycles": 100.0, "sorted_us": 100.0}
"""An embedding's gradient, to begin with."""
LONG_US = 300.0
"""NeuSight's table leaves out what took less than 150 or 200 µs, so that of kernels that are predicted to take about as
much it has only those that took longer: what shorter ones take is said by others (`calibrate_cache`)."""
MOST_OF_L2 = 1.5
"""What L2 holds nothing of says how the benchmark's kernel uses memory, and not PyTorch's."""
HEAD = "Kernels that memory bounds: the shares of cost/families/streams.py."


SHORT = "; short ones: repeated streaming kernels of gpu-benches"
SOURCES = {
    "own GPU": f"the kernels that the GPU's one share was fitted on, and its layer norms and softmax{SHORT}",
    "own generation": f"another GPU of the generation gave the share{SHORT}",
    "borrowed": f"another generation gave the share{SHORT}",
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
    return float(f"{now / np.median(ratio):.3g}")


def begin() -> None:
    """A data file from which the fits begin, whatever was in it: every share unfitted, those of classes assumed."""
    rows = [
        ("rate", {"generation": gpus.find(key).generation, "gpu": key, "share": BEGIN, "source": ""}) for key in read()
    ]
    classes = [("class", {"name": name, "share": share, "source": "assumed"}) for name, share in ASSUMED]
    chain = ("chain", {"name": "scan", "column_us": 0.15, "order": 0.85, "source": "assumed"})
    rate = {"elements_per_clock": 1.0, "source": "assumed"}
    embedding = ("embedding", GRADIENT | {"source": "assumed"})
    generators = [("generator", {"name": name} | rate) for name in ("uniform", "normal", "bernoulli")]
    write("streams", HEAD, [*rows, *classes, chain, *generators, embedding])


def calibrate() -> None:
    """Fit the share of each GPU that the table has, and write them; the other rows of the file stay."""
    rates = {row["gpu"]: row for row in files.read("streams")["rate"]}
    for _ in range(2):  # a floor is a part of the time and not of the share
        shares = {key: fitted_share(kernels, gpus.find(key)) for key, kernels in read().items()}
        for key, share in shares.items():
            rates[key] |= {"share": share, "source": f"fitted: {SOURCE}"}
        forget_shares()
    write("streams", HEAD, tables_of(files.read("streams")))


def scaled(elements: int) -> Signature:
    """The kernel that they repeated: numbers of 64 bits, times one."""
    return Signature("aten::mul", ((elements,),) * 2, ("float64",) * 2, 1, 0, 8 * elements, 8 * elements)


def repeated() -> list[Residuals]:
    """Measured over predicted times of short kernels, whose bytes L2 holds, or some of them."""
    found = []
    for card in calibrate_cache.read():
        if card.name not in gpus.names():
            continue
        cost = CostModel(gpus.find(card.name), (12, 4))
        small = card.size <= MOST_OF_L2 * card.l2_bytes
        calls = [calibrate_cache.in_a_loop(scaled(size // 16), size) for size in card.size[small].astype(int).tolist()]
        us = np.array([cost.priced(call).duration_ns / 1000.0 for call in calls])
        found.append(Residuals("short kernels", card.name, card.us[small] / us, card.us[small]))
    return found


def check(update: bool = False) -> None:
    """Print the errors with the shares as they are, and with a GPU and a generation left out; write the bands."""
    timings = read()
    known = [(row["generation"], row["gpu"], float(row["share"])) for row in files.read("streams")["rate"]]
    residuals: dict[str, list[Residuals]] = {"own GPU": [], "own generation": [], "borrowed": []}
    for key, kernels in timings.items():
        gpu, us = gpus.find(key), np.array([kernel.us for kernel in kernels])
        others = [row for row in known if row[1] != key]
        mine = next(row for row in known if row[1] == key)
        sibling = next((row for row in others if row[0] == gpu.generation), None)
        nearest = streams.NEAREST.get(gpu.generation, "ampere")
        far = next((row for row in others if row[0] == nearest != gpu.generation), None)
        for distance, row in (("own GPU", mine), ("own generation", sibling), ("borrowed", far)):
            if row is not None:
                ratio = ratios(kernels, gpu, row[2])
                long = us / ratio >= LONG_US
                residuals[distance].append(Residuals(distance, key, ratio[long], us[long]))
    short = repeated()
    for some in (*residuals.values(), short):
        report_all(some)
    with_short = {distance: [pooled([one, *short])._replace(distance=distance, gpu=one.gpu) for one in some]
                  for distance, some in residuals.items()}  # fmt: skip
    for some in with_short.values():
        report_durations(some)
    if update:
        update_bands(("streams",), band_rows("streams", with_short, SOURCES))


def validate() -> None:
    """The errors, and the bands that they make."""
    check(update=True)
