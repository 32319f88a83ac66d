"""Scans, sorts, and what chooses elements: cumulative sums and extremes, `sort`, `topk`, `nonzero`, `unique`.

- A scan along the rows of a matrix goes through each row step by step (ATen's ScanUtils.cuh: a few rows share a block,
  and each tile of a row waits for the one before), so the time follows the length of the rows and not the bytes:

      time = floor + max(column_us * columns ** order, bytes / (bandwidth * share))

  One long row is CUB's device scan instead, which reads and writes once.
- A sort of rows up to `IN_A_BLOCK` reads and writes once. A longer one is a radix sort of the values with their places:
  eight bits a pass, each of which reads and writes both (Adinets and Merrill, Onesweep, arXiv 2206.01784), and one more
  reading for the histograms. `unique` begins with a sort, `randperm` is one.
- All others move their bytes once.

The constants are fitted on 24 published scans of rows on an H20 and two long ones of an A100 and an H100 (`make
calibrate`, `data/streams.toml`). Of sorts no published time was found that names its GPU and PyTorch's present kernels.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import NamedTuple

from windtunnel.cost import flops
from windtunnel.cost.bands import band
from windtunnel.cost.families import streams
from windtunnel.cost.families.problem import Price, Problem
from windtunnel.cost.files import read, shortest_ns
from windtunnel.operators.classes import classify

CLASSES = ("scan",)
IN_A_BLOCK = 4096
"""The longest row that one block sorts (aten/src/ATen/native/cuda/Sort.cu)."""
_SCANS = (
    "cumsum", "cumprod", "cummax", "cummin", "_cummax_helper", "_cummin_helper", "logcumsumexp", "_logcumsumexp",
)  # fmt: skip
_SORTS = ("sort", "argsort", "msort", "unique", "_unique", "_unique2", "unique_dim", "randperm")
_INDEX_BYTES = 8


class Chain(NamedTuple):
    """The way along the rows of a scan: microseconds of `columns ** order`."""

    column_us: float
    order: float


@cache
def chain() -> Chain:
    """The row of `data/streams.toml`."""
    row = read("streams")["chain"][0]
    return Chain(row["column_us"], row["order"])


def price(problem: Problem) -> Price:
    """The time of a scan, a sort or a choice of elements."""
    signature, gpu, name = problem.signature, problem.gpu, problem.name
    operator = classify(signature.name)
    of = problem.inputs[0] if problem.inputs else ()
    size = float(flops.bytes_moved(signature))
    if name in _SORTS:
        size = max(size, float(sorted_bytes(of, problem.item_bytes)))
    time_ns = streams.moved_ns(gpu, size, streams.bandwidth(gpu) * streams.class_share("scan", False))
    if name in _SCANS and prod(of[:-1]) > 1:
        time_ns = max(time_ns, 1000.0 * chain().column_us * of[-1] ** chain().order)
    floor_ns = shortest_ns(operator, gpu.generation)
    return Price(floor_ns + time_ns, floor_ns, band("scans", "borrowed"))


def sorted_bytes(shape: tuple[int, ...], item_bytes: int) -> int:
    """What a radix sort of rows moves: the values for the histograms, then values and places in each pass."""
    if not shape or shape[-1] <= IN_A_BLOCK:
        return 0
    passes = item_bytes  # eight bits each
    return prod(shape) * (item_bytes + passes * 2 * (item_bytes + _INDEX_BYTES))
