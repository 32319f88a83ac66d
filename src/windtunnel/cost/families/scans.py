"""Scans, sorts, and what chooses elements: cumulative sums and extremes, `sort`, `topk`, `nonzero`, `unique`.

- A scan along the rows of a matrix gives each block of 512 threads some rows (ATen's ScanUtils.cuh: 16 to 512 threads a
  row, by the logarithms of both sides; in older versions 16 where it keeps places). In each turn of its loop a block
  scans twice as many elements of a row as threads have it, in 2 log2(threads) + 1 steps between barriers. A turn of the
  blocks that share a multiprocessor takes so many cycles:

      wait + wait_step * steps + blocks * (turn + turn_step * steps)
- A scan along another dimension gives each thread a column, through which it goes load by load. A sector serves as many
  rows as it holds.
  One long row is CUB's device scan instead, which reads and writes once.
- Sorts and `topk` are `sorts.py`'s matter. `unique` begins with a sort, `randperm` is one.
- All others move their bytes once.

The constants are fitted on scans of rows, published on an H20 and two H100 and measured on an H100 and an H200
(`make hardware`), and on two long ones of an A100 and an H100
(`make calibrate`, `data/streams.toml`).
"""

from __future__ import annotations

from functools import cache
from math import ceil, log2, prod
from typing import NamedTuple

from windtunnel.cost import flops
from windtunnel.cost.bands import band
from windtunnel.cost.cache import moved_ns
from windtunnel.cost.families import sorts, streams
from windtunnel.cost.families.problem import Price, Problem
from windtunnel.cost.files import read, shortest_ns
from windtunnel.operators.classes import classify

CLASSES = ("scan", "sort")
_SORTS = ("sort", "argsort", "msort", "unique", "_unique", "_unique2", "unique_dim", "randperm")

BLOCK_THREADS = 512
LOAD_US = 0.32
"""A load from memory, for which the next one of a column waits: cumsum down 1,048,576 rows of 2 to 32 columns takes
0.08 to 0.32 us a row (pytorch/pytorch#122170, whose GPU has the memory of a T4 or L4)."""
PLACES_SINCE = (13, 0)
"""From this version of CUDA on scans that keep places have as many threads a row as others; assumed. Published ones of
an H20 have 16, those of an A100 not (FlagOpen/FlagGems#4365, #683)."""


class Turn(NamedTuple):
    """A turn of a block's loop over its rows, in cycles; each with what every step of the scan within it adds."""

    wait: float
    wait_step: float
    turn: float
    turn_step: float


@cache
def turn_of(name: str) -> Turn:
    """The row of `data/streams.toml` of a scan's operator: one that keeps places, logarithms, or all others."""
    kind = "places" if keeps_places(name) else "logarithms" if "logcumsumexp" in name else "sums"
    row = next(row for row in read("streams")["scan"] if row["name"] == kind)
    return Turn(*(row[field] for field in Turn._fields))


def keeps_places(name: str) -> bool:
    """Whether a scan's result has an index beside each value."""
    return "cummax" in name or "cummin" in name


def price(problem: Problem) -> Price:
    """The time of a scan, a sort or a choice of elements."""
    signature, gpu, name = problem.signature, problem.gpu, problem.name
    operator = classify(signature.name)
    of = problem.inputs[0] if problem.inputs else ()
    size = float(flops.bytes_moved(signature))
    rows = sorts.rows_of(problem)
    least_ns = 0.0
    if name in _SORTS:
        size, least_ns = max(size, sorts.moved_bytes(problem, *rows)), sorts.sort_ns(problem, *rows)
    if name == "topk":
        size, least_ns = size + sorts.selected_bytes(problem, *rows), sorts.topk_ns(problem, *rows)
    rate = streams.bandwidth(gpu) * streams.class_share("scan", False)
    time_ns = max(least_ns, moved_ns(gpu, size, rate, known=problem.reused))
    dim = int(dict(signature.detail).get("dim", -1))
    if operator.name == "scan" and of and prod(of) > of[dim]:
        last = dim in (-1, len(of) - 1)
        longest = rows_ns(problem, prod(of[:-1]), of[-1]) if last else column_ns(of[dim:], problem.item_bytes)
        time_ns = max(time_ns, longest)
    floor_ns = shortest_ns(operator, gpu.generation)
    width = max(band("scans", "borrowed"), sorts.BAND if name in (*_SORTS, "topk") else 0.0)
    return Price(floor_ns + time_ns, floor_ns, width)


def column_ns(shape: tuple[int, ...], item_bytes: int) -> float:
    """A scan along the first of these dimensions: the loads of one thread, of which some find their sector in L1."""
    return 1000.0 * LOAD_US * shape[0] * min(1.0, item_bytes * prod(shape[1:]) / streams.SECTOR_BYTES)


def rows_ns(problem: Problem, rows: int, columns: int) -> float:
    """A scan of so many rows: the turns of the multiprocessor that has the most blocks."""
    across, down = (ceil(log2(max(1, side))) for side in (columns, rows))
    few = keeps_places(problem.name) and problem.cuda_version < PLACES_SINCE
    threads: int = 1 << (4 if few else min(9, max(4, (9 + across - down) // 2)))
    gpu = problem.gpu
    blocks = ceil(ceil(rows / (BLOCK_THREADS // threads)) / gpu.sm_count)
    at_once = gpu.max_threads_per_sm // BLOCK_THREADS
    steps = 2 * log2(threads) + 1
    turn = turn_of(problem.name)

    def cycles(together: int) -> float:
        return turn.wait + turn.wait_step * steps + together * (turn.turn + turn.turn_step * steps)

    waves = (blocks // at_once) * cycles(at_once) + (cycles(blocks % at_once) if blocks % at_once else 0.0)
    return 1000.0 * ceil(columns / (2 * threads)) * waves / gpu.cycles_per_us
