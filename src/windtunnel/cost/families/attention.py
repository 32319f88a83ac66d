"""Fused attention: flash, cuDNN's and the memory-efficient kernels, forward and backward, by tiles and waves.

A block of threads takes `TILE_ROWS` queries of one head and runs over the keys, or in the backward pass as many keys
and runs over the queries (Dao, FlashAttention-2, arXiv 2307.08691, sections 3.1 and 3.2). For each score it takes

    multiply-adds   2 (d + dv) operations forward, 2 (3 d + 2 dv) backward, at a share of the tensor cores' peak
    the rest        the exponential, maxima and sums, which the ordinary cores do in so many cycles

and it begins with a prologue. Blocks go over the multiprocessors in waves. A causal mask takes away the keys behind a
block's last query, its masked tiles count as whole ones, and no wave is shorter than its longest block. Where few
blocks would run, the forward pass without dropout splits the keys and adds the parts (flash-attention's
`num_splits_heuristic`). Memory reads queries, keys and values once; heads that share keys share their bytes, and each
head reads a mask that is a tensor. The backward pass has two more kernels, which read the results and their gradients
and convert the gradient of the queries, kept in 32 bits.

Texts of several lengths in one tensor (`_flash_attention_forward` and its like) are priced as equally long ones: a
signature says how many there are and the longest, not each.

The memory-efficient kernels (CUTLASS, from xFormers) do the same at shares of flash's rates that were fitted apart, in
32 bits by three TF32 products (`efficient fp32`). Attention that PyTorch writes out (its `math` path) is products and a
softmax, and each is priced as such.

The constants are fitted (`data/attention.toml`, `make calibrate`) on NVIDIA aiconfigurator's timings of
FlashAttention-2 on A100 and L40S, and on what the benchmarks of flash-attention and PyTorch printed for people on RTX
A5000, H100 and B200.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import ceil, prod
from typing import NamedTuple

from windtunnel.cost.bands import band
from windtunnel.cost.families.problem import Price, Problem
from windtunnel.cost.files import floor_scale, read, shortest_ns
from windtunnel.cost.power import sustained_share
from windtunnel.gpus import Gpu
from windtunnel.operators.classes import classify

CLASSES = ("attention",)
TILE_ROWS = 128
"""Queries of a block (keys in the backward pass): flash-attention's kBlockM."""
TILE_COLUMNS = 64
"""Keys of one step of its loop."""
HEADS = (32, 64, 96, 128, 192, 256)
"""Sizes of a head that there are kernels for (flash-attention's `headdim_switch`; CUTLASS's `kMaxK` are alike): smaller
ones take as long as these. An L40S takes as long for 72 as for 80, and 1.4 times as long as for 64 (aiconfigurator)."""
IN_REGISTERS = 128
"""The largest head whose results CUTLASS's memory-efficient kernels keep there (`kKeepOutputInRF`)."""
SPLITS = (1, 2, 4, 8, 16, 32)
BANDWIDTH_SHARE = 0.8
"""Of the memory's bandwidth that queries, keys and values come at; assumed, as products reach it."""
SPLIT_US = 3.0
"""The kernel that adds the parts of split keys; assumed: a short kernel."""
NEAREST = {
    "volta": "ampere",
    "turing": "ampere",
    "ampere-86": "ada",
    "ada": "ampere",
    "hopper": "ampere",
    "blackwell": "hopper",
    "blackwell-120": "ada",
    "ampere": "ada",
}
ENOUGH = 100
"""Timings from which on constants count as a GPU's own; of fewer, what they cannot tell is another generation's."""
_HEADS_LAST = ("_flash_attention", "_efficient_attention")


class AttentionConstants(NamedTuple):
    """What was fitted for one generation.

    `efficiency` is the share of the tensor cores' peak that the products reach, `backward` that of the backward pass
    relative to it, `score_cycles` what an SM takes for the rest of a thousand scores, in clock cycles; `tail` is the
    part of a last, partial wave that is waited for as if it were a whole one; `causal` is by how much a causal mask
    lengthens the scores that it leaves in the forward pass: on an H100 it takes 0.65 of the time without, and 0.51 in
    the backward pass (Dao-AILab/flash-attention#1791).
    """

    efficiency: float = 0.9
    backward: float = 0.9
    score_cycles: float = 40.0
    prologue_us: float = 2.0
    tail: float = 0.3
    floor_us: float = 5.0
    causal: float = 1.0


class Attention(NamedTuple):
    """Texts, heads of queries and of keys, queries and keys a text, sizes of a head, and what the call asks for.

    `masked` says that each score gets a number from a tensor (`attn_mask`), `spills` that a kernel's results do not
    fit into its registers.
    """

    texts: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int
    causal: bool
    backward: bool
    splits: bool
    masked: bool = False
    spills: bool = False

    @property
    def blocks(self) -> int:
        return self.texts * self.heads * ceil((self.keys if self.backward else self.queries) / TILE_ROWS)


class AttentionFit(NamedTuple):
    """Constants, the GPU and generation that they were fitted on, its share of its clock, and how many timings."""

    constants: AttentionConstants
    gpu: str
    generation: str
    sustained_share: float
    timings: int


@cache
def fitted() -> dict[str, AttentionFit]:
    """The rows of `data/attention.toml` by generation."""
    return {
        row["generation"]: AttentionFit(
            AttentionConstants(*(row[name] for name in AttentionConstants._fields)),
            row["gpu"],
            row["generation"],
            row["sustained_share"],
            row["n"],
        )
        for row in read("attention")["row"]
    }


@cache
def share(kernel: str) -> float:
    """What a kernel reaches of the rates of flash attention's; 1.0 for those without a row."""
    return next((float(row["share"]) for row in read("attention")["share"] if row["name"] == kernel), 1.0)


def row_for(generation: str) -> AttentionFit | None:
    """The constants of a generation, or the nearest one's; None where there are no tensor cores."""
    seen = []
    while generation not in fitted():
        seen.append(generation)
        nearest = NEAREST.get(generation)
        if nearest is None or nearest in seen:
            return None
        generation = nearest
    return fitted()[generation]


def padded(dim: int) -> int:
    """The size of a head that a kernel computes with."""
    return next((size for size in HEADS if dim <= size), dim)


def time_us(of: Attention, gpu: Gpu, peak_flops: float, item_bytes: int, constants: AttentionConstants) -> float:
    """Microseconds of an attention, without its floor.

    One query of several heads that share their keys is a block of as many queries (flash-attention's
    `seqlenq_ngroups_swapped`).
    """
    if of.splits and of.queries == 1 and of.heads > of.key_heads:
        of = of._replace(heads=of.key_heads, queries=of.heads // of.key_heads, causal=False)
    kernel = (
        2 * (3 * padded(of.dim) + 2 * padded(of.value_dim))
        if of.backward
        else 2 * (padded(of.dim) + padded(of.value_dim))
    )
    efficiency = constants.efficiency * (constants.backward if of.backward else 1.0)
    score_us = kernel * gpu.sm_count * 1e6 / (peak_flops * efficiency)
    score_us += (2 if of.backward else 1) * constants.score_cycles / 1000.0 / gpu.clock_mhz
    score_us *= constants.causal if of.causal and not of.backward else 1.0
    outer, inner = (of.keys, of.queries) if of.backward else (of.queries, of.keys)
    longest = TILE_COLUMNS * ceil(inner / TILE_COLUMNS)
    mean = float(longest)
    if of.causal:
        mean = min(mean, max(0, inner - outer) + (min(outer, inner) + 2 * TILE_ROWS) / 2)
    rows = min(outer, TILE_ROWS) if outer > TILE_ROWS // 2 else TILE_ROWS // 2
    best = _waves_us(of.blocks, gpu.sm_count, longest, mean, rows * score_us, constants)
    if of.splits and of.blocks < 0.8 * gpu.sm_count:
        for parts in SPLITS[1:]:
            longer, usual = max(TILE_COLUMNS, longest / parts), max(TILE_COLUMNS, mean / parts)
            split = _waves_us(of.blocks * parts, gpu.sm_count, longer, usual, rows * score_us, constants)
            best = min(best, split + SPLIT_US)
    memory = memory_bytes(of, item_bytes) / (BANDWIDTH_SHARE * gpu.memory_bandwidth_bytes_per_s) * 1e6
    return float(max(best, memory) * (1.0 + (min(best, memory) / max(best, memory)) ** 4) ** 0.25)


def _waves_us(
    blocks: int, sm_count: int, longest: float, mean: float, column_us: float, constants: AttentionConstants
) -> float:
    """Blocks over the multiprocessors: by their mean, and no less than the longest of them."""
    filled = blocks / sm_count
    waves = max(1.0, filled + constants.tail * (ceil(filled) - filled))
    return max(constants.prologue_us + longest * column_us, waves * (constants.prologue_us + mean * column_us))


def memory_bytes(of: Attention, item_bytes: int) -> float:
    """Bytes that one call reads and writes; every head reads a mask of its own accord."""
    queries = of.texts * of.heads * of.queries
    keys = of.texts * of.key_heads * of.keys
    once = item_bytes * (queries * (of.dim + of.value_dim) + keys * (of.dim + of.value_dim))
    if of.masked:
        once += item_bytes * queries * of.keys
    if of.spills:  # 32-bit results of every block, written and read for each tile of keys
        once += 8 * queries * of.value_dim * ceil(of.keys / TILE_ROWS)
    if not of.backward:
        return once
    # The results and their gradients twice, and the 32-bit gradient of the queries written, read and converted.
    return 2.0 * once + queries * (2 * item_bytes * of.value_dim + 12 * of.dim)


def sizes(problem: Problem) -> Attention | None:
    """An attention's sizes from the shapes of its call; None where they are not those of one."""
    backward = "backward" in problem.name
    shapes, detail = problem.inputs, dict(problem.signature.detail)
    first = 1 if backward else 0
    if len(shapes) < first + 3 or not all(len(shape) >= 3 for shape in shapes[first : first + 3]):
        return None
    query, key, value = shapes[first : first + 3]
    if not prod(query) * prod(key) * prod(value):
        return None
    if problem.name.startswith(_HEADS_LAST):
        rows, heads, columns, key_heads = query[-3], query[-2], key[-3], key[-2]
    else:
        rows, heads, columns, key_heads = query[-2], query[-3], key[-2], key[-3]
    texts = prod(query[:-3])
    if len(query) == 3:  # all texts in one tensor, cut where a list of beginnings says
        texts = max(1, next((shape[0] - 1 for shape in shapes[first + 3 :] if len(shape) == 1 and shape[0] > 1), 1))
        rows, columns = ceil(rows / texts), ceil(columns / texts)
    causal = any(str(detail.get(name, 0)) not in ("0", "False") for name in ("is_causal", "causal", "custom_mask_type"))
    splits = not backward and str(detail.get("dropout_p", "0.0")) in ("0.0", "0")
    masked = _is_masked(shapes[first + 3 :], rows, columns, backward and columns == value[-1])
    spills = "efficient" in problem.name and value[-1] > IN_REGISTERS
    return Attention(
        texts, heads, key_heads, rows, columns, query[-1], value[-1], causal, backward, splits, masked, spills
    )


def _is_masked(rest: Sequence[tuple[int, ...]], queries: int, keys: int, results_too: bool) -> bool:
    """Whether a mask is among the tensors after the values; `results_too` if the forward's results look like one."""
    like = [shape for shape in rest if len(shape) in (2, 4) and shape[-1] == keys and shape[-2] in (1, queries)]
    return len(like) > results_too


def kernel_of(problem: Problem) -> str:
    """The name of the row of shares: "" for flash attention and cuDNN's."""
    if "efficient" not in problem.name:
        return ""
    words = ["efficient"] + (["fp32"] if problem.precision in ("fp32", "tf32") else [])
    return " ".join(words + (["backward"] if "backward" in problem.name else []))


def price(problem: Problem) -> Price | None:
    """The time of a fused attention; None for generations and precisions without constants."""
    found, row = sizes(problem), row_for(problem.gpu.generation)
    kernel = kernel_of(problem)
    half = problem.precision in ("fp16", "bf16")
    if found is None or row is None or not (half or kernel) or not problem.gpu.has_tensor_cores:
        return None
    gpu, constants = problem.gpu, row.constants
    clock = sustained_share(gpu, "tf32") / row.sustained_share
    reached = clock * share(kernel) if kernel else clock
    constants = constants._replace(
        efficiency=constants.efficiency * reached, score_cycles=constants.score_cycles / reached
    )
    peak = problem.peak_flops if half else gpu.peak_flops["fp32"]
    operator = classify(problem.signature.name)
    floor_us = constants.floor_us * floor_scale(gpu.generation) / floor_scale(row.generation)
    floor_us *= 3 if found.backward else 1
    length = time_us(found, gpu, peak, problem.item_bytes, constants)
    own = gpu.key == row.gpu and row.timings >= ENOUGH and not kernel
    distance = "own GPU" if own else "own generation" if gpu.generation == row.generation else "borrowed"
    floor_ns = max(1000.0 * floor_us, shortest_ns(operator, gpu.generation))
    total_ns = floor_ns + 1000.0 * length
    return Price(total_ns, floor_ns, band("attention", distance, row.gpu, total_ns / 1000.0), own=own)
