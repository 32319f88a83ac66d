"""Kernels that Inductor generates (`torch.compile`), by the bytes that their loop nests move.

    time = floor + (bytes + what a further loop reads again from memory) / (bandwidth * share of the kind)

where the bandwidth is that of additions (`streams`), and what is read and written counts in sectors
(seam/torch/compiled/accesses.py). The kinds are Inductor's: pointwise kernels, those of them whose grid has two
dimensions since layouts change ("layout"), reductions whose rows stay in registers ("persistent reduction") and those
that go round a loop ("reduction"), apart from those of them that read and hardly write ("sums": products with one row
are such). A row that a loop reads again is still in L2 unless the rows in flight outgrow it.
The shares are fitted on timm's published results of compiled models on an RTX 4090 (`data/generated.toml`, written by
`tools/calibration/calibrate_compiled.py`). Products by Inductor's templates go by the curve of products.
"""

from __future__ import annotations

from functools import cache

from windtunnel.cost.bands import band
from windtunnel.cost.cache import moved_ns
from windtunnel.cost.families import streams
from windtunnel.cost.families.problem import Price, Problem
from windtunnel.cost.files import read, shortest_ns
from windtunnel.operators.classes import classify
from windtunnel.trace.operation import Signature

CLASSES = ("generated_pointwise", "generated_reduction")
FITTED_ON = ("ada",)
"""Generations of the cards whose results the shares were fitted on."""


@cache
def fitted_share(kind: str) -> float:
    """What a kind of kernels reaches of the bandwidth of additions."""
    return float(next(row["share"] for row in read("generated")["share"] if row["name"] == kind))


HARDLY = 1 / 8
"""A kernel that writes less than so much of what it reads is bounded by reading."""


def kind_of(signature: Signature) -> str:
    """The kind of a kernel, as the table of shares names it."""
    detail = dict(signature.detail)
    kind = str(detail.get("kind", "pointwise"))
    if kind == "reduction" and signature.written_bytes < HARDLY * signature.read_bytes:
        return "sums"
    if kind == "pointwise" and detail.get("tiled"):
        return "layout"
    return kind if kind.endswith("reduction") else "pointwise"


def price(problem: Problem) -> Price:
    """The time of one launch."""
    signature, gpu = problem.signature, problem.gpu
    detail = dict(signature.detail)
    rate = streams.bandwidth(gpu) * fitted_share(kind_of(signature))
    again = float(detail.get("again", 0))
    rows = max(1, int(detail.get("rows", 1)))
    time_ns = moved_ns(
        gpu,
        float(signature.read_bytes + signature.written_bytes),
        rate,
        again * streams.lost(again / rows, gpu),
        problem.reused,
    )
    floor_ns = shortest_ns(classify(signature.name), gpu.generation)
    distance = "own generation" if gpu.generation in FITTED_ON else "borrowed"
    return Price(floor_ns + time_ns, floor_ns, band("generated", distance), of_steps=True)
