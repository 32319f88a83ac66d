"""What a GPU keeps of its tensor cores' speed once they have worked long enough to meet its power limit.

Products and fused attention in 16 and 8 bits are priced by short runs (`families/`), and convolutions up to what a
large product reaches in one. A training holds its load for hours, and its clock sinks until the card draws no more than
it may. How much work tensor cores did of late is told by their rate, the share of the listed peak that they reached on
average: up to `begins` nothing is lost, from `full` on they keep `share` of their speed. Of the GPUs that trainings
were published of, an H100 keeps less than an A100; generations without such trainings take the mean. A card with more
watts for each operation of its peak than that of the trainings (`gpu` of the row) meets the limit at a higher rate: an
H20, which has five times as many, never does. The constants of the generations that have no row in
`data/sustained.toml` were fitted on whole trainings and so hold the loss already, and so do those of FP32 and TF32.
"""

from __future__ import annotations

from functools import cache
from math import exp
from typing import NamedTuple

from windtunnel import gpus
from windtunnel.cost.files import read
from windtunnel.cost.power import flops_per_joule
from windtunnel.cost.scales import POWER_LIMIT, scale
from windtunnel.gpus import Gpu

WINDOW_NS = 1e8
"""How far back the rate looks: longer than the runs that time one kernel, shorter than a few steps."""
PRECISIONS = frozenset({"fp16", "bf16", "fp8", "fp4"})
CLASSES = frozenset({"matmul", "bmm", "attention", "convolution"})


class Limit(NamedTuple):
    """A row of `data/sustained.toml`: `band` is the error band of trainings that were slowed.

    Products and attention took a `part` of their time. Their attention took longer than PyTorch's, by `attention`.
    `flops_per_joule` is the peak over the watts of the GPU that meets the limit at these rates.
    """

    share: float
    begins: float
    full: float
    band: float
    part: float
    attention: float
    flops_per_joule: float


@cache
def limit_of(generation: str) -> Limit | None:
    """What a generation's tensor cores keep, or None where their prices hold the loss already."""
    for row in read("sustained").get("limit", ()):
        if generation == row["generation"]:
            dense = flops_per_joule(gpus.find(row["gpu"]))
            return Limit(**{name: float(row[name]) for name in Limit._fields[:-1]}, flops_per_joule=dense)
    return None


class Sustained:
    """One GPU's tensor cores over time: `slowdown` is asked for each of their kernels in the order of launches.

    `met` is the limit, None until a kernel was slowed.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.met: Limit | None = None
        limit = limit_of(gpu.generation)
        self._limit = limit and limit._replace(band=limit.band * scale(gpu.key, POWER_LIMIT))
        self._dense = 1.0 if limit is None else flops_per_joule(gpu) / limit.flops_per_joule
        self._work_ns = 0.0
        self._at_ns = 0

    def slowdown(self, peak_ns: float, start_ns: int) -> float:
        """How many times as long a kernel takes from `start_ns`, whose operations take `peak_ns` at the peak."""
        limit = self._limit
        if limit is None or not peak_ns:
            return 1.0
        if start_ns > self._at_ns:
            self._work_ns *= exp((self._at_ns - start_ns) / WINDOW_NS)
            self._at_ns = start_ns
        self._work_ns += peak_ns
        rate = self._dense * self._work_ns / WINDOW_NS
        if rate <= limit.begins:
            return 1.0
        self.met = limit
        reached = min(1.0, (rate - limit.begins) / (limit.full - limit.begins))
        return 1.0 / (1.0 - (1.0 - limit.share) * reached)
