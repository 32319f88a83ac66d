"""Matrix products: tiles over the multiprocessors, the loop over k, split-K, memory traffic and a floor.

A library such as cuBLAS cuts the m x n results into tiles, gives each to one multiprocessor (SM) and runs along k. Here
every tile of `TILES` and every split of k that a library would try is priced, and the fastest is taken:

- The tiles go over the SMs in waves. A step along k takes as long as the multiply-adds at the rate of an SM (larger
  tiles come closer to the peak), or as reading both operands' parts from L2, or a shortest step. A wave also takes a
  prologue and the writing of its tile.
- Memory reads each operand at least once, and again where a wave of tiles does not span the whole result. Operands
  that come round again within the L2 cache are not read from memory: the timings behind the constants went round six
  weights, and their jump in time on an L40S lies where six weights fill its L2. On A100, H100 and B200 it lies at half
  of the listed size (`l2_share`): their L2 has two partitions, and each caches what its own SMs read.
- Splitting k fills the GPU where tiles are few, and costs the sum over the parts.
- Products of one step along k in 32 bits write their results one after the other, as fast as memory takes them. From
  CUDA 12.4 on, Hopper's in 32 bits write theirs after their loops with nothing beside it (`EXPOSED`), and products with
  a vector are bound by the matrix that they read.
- Results of few columns and short rows of operands ("thin") make many blocks that are small enough to share an SM and
  hide each other's waits: memory bounds them, or the tensor cores at half their rate.
- Large work lowers the clock, since power is limited.

The form follows NVIDIA's guide to matrix multiplication performance ("Tile quantization", "Wave quantization"),
CUTLASS's "Efficient GEMM in CUDA" and NeuSight's tiles (Lee et al., ASPLOS '25). The constants are fitted:
`data/products.toml`, written by `tools/calibration/calibrate_products.py`. The time never falls when a side grows.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any, NamedTuple

from windtunnel import gpus
from windtunnel.cost import flops
from windtunnel.cost.bands import band
from windtunnel.cost.families.problem import Price, Problem
from windtunnel.cost.files import floor_scale, read
from windtunnel.cost.power import sustained_share, unsure
from windtunnel.gpus import Gpu

CLASSES = ("matmul", "bmm")
TILES = (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128), (64, 32), (32, 64),
    (32, 32), (64, 16), (16, 64), (32, 16), (16, 32), (16, 16),
)  # fmt: skip
"""Rows and columns of the results that one block computes; cuBLAS's kernels carry such numbers in their names."""
MOST_WAVES = 32
"""Tiles smaller than 128 x 64 are tried where they make no more waves than this, or where the results are smaller."""
SPLITS = (1, 2, 3, 4, 6, 8, 16, 32)
FEWER_SPLITS = tuple(zip((0, *SPLITS), SPLITS, strict=False))
"""Each with the one before it: a split into more parts than there are steps is tried where that one is too few."""
THIN = 32
"""The shorter side of a result up to which it is thin."""
THIN_DEPTH = 1024
"""And the longest k: beyond it, blocks of thin results wait for their own steps."""
THIN_RATE = 0.5
"""Share of the tensor cores' rate that thin results reach; assumed."""
STEP_BYTES = 128
"""Of each row of an operand, what one step along k reads: 64 elements of 16 bits."""
EXPOSED = {"hopper": (12, 4), "blackwell": (12, 4)}
"""Generations, and from which version of CUDA on, whose products in 32 bits do not hide their writing: with k of 32 to
128, an H100 and an H200 take the sum of both (`make hardware`). NeuSight's products, of an earlier version, hide it."""
NEVER = (99, 0)
LARGE = 8192
"""Sides of a product that reaches the most that products reach."""
STREAM_SHARE = 0.92
"""What writing of whole results, and reading a matrix for one vector, reach of the bandwidth: an H200's."""
COPIES = 6
"""Weights that the timings went round (aiconfigurator's collectors); in a program, those of the next layers."""
LARGE_US = 300.0
"""Work that takes this long at the peak feels half of the power limit's slowdown."""
NEAREST = {
    "volta": ("ampere",),
    "turing": ("ampere",),
    "ampere": ("hopper",),
    "ampere-86": ("ampere",),
    "ada": ("ampere",),
    "hopper": ("ampere",),
    "blackwell": ("hopper",),
    "blackwell-120": ("ada", "ampere"),
}
NEAREST_FP32 = {"kepler": ("pascal",), "ampere-86": ("ada",), "blackwell": ("hopper",), "blackwell-120": ("ada",)}
"""The same without tensor cores: GA10x, Ada and Blackwell-120 have 128 FP32 lanes an SM, A100 half of them."""
PACKED_WEIGHTS = ("_weight_int4pack_mm", "_weight_int8pack_mm")
"""Products whose weights are narrower than the arithmetic: the bytes that they read bound them, not these tiles."""
_SERVED_BY = {
    "fp16": "bf16",
    "bf16": "bf16",
    "fp8": "bf16",
    "fp4": "bf16",
    "int8": "bf16",
    "tf32": "bf16",
    "fp32": "fp32",
}
"""The precision whose constants serve each one: the tensor cores' peaks differ, their kernels are alike."""


Number = Any
"""A number; in the calibration, an array of them."""


class ProductConstants(NamedTuple):
    """What was fitted for one generation and precision. Times in microseconds, rates an SM and clock cycle.

    `efficiency` is the share of the peak that an endless tile reaches, and a tile of side `half_tile` reaches half of
    it; `tail` is the part of a last, partial wave that is waited for as if it were a whole one; `power` is by how
    much the power limit slows large work; `sharpness` is how hard the change between the bounds is; `l2_share` is the
    part of the L2 cache in which an operand survives until it comes round again.
    """

    floor_us: float = 2.0
    prologue_us: float = 0.6
    write_bytes_per_clock: float = 15.0
    read_bytes_per_clock: float = 40.0
    step_us: float = 0.1
    split_us: float = 2.5
    tail: float = 0.5
    efficiency: float = 1.1
    half_tile: float = 30.0
    bandwidth_share: float = 0.8
    lag_us: float = 0.5
    power: float = 0.08
    sharpness: float = 3.5
    l2_share: float = 0.8


class Rates(NamedTuple):
    """What a GPU does in a microsecond: operations and bytes of one SM, bytes of its memory; and how many SMs."""

    sm_count: int
    flops: float
    read_bytes: float
    write_bytes: float
    memory_bytes: float
    l2_bytes: float
    stream_bytes: float


class Arithmetic(NamedTuple):
    """The functions that `candidate_us` needs: Python's for numbers; the calibration passes those for arrays."""

    max: Any = max
    min: Any = min
    ceil: Any = math.ceil


class Product(NamedTuple):
    """`batch` products of m x k with k x n, with elements of `item_bytes`.

    `distinct` is the part of the first operand's elements that memory holds: a convolution gathers some several times.
    `inputs` is how many first operands the work goes round: one, which the kernel before wrote, except in some timings.
    `hidden` is the part of the results' writing that the loops of other blocks hide: all of it or none.
    """

    batch: Number
    m: Number
    n: Number
    k: Number
    item_bytes: Number
    distinct: Number = 1.0
    inputs: Number = 1.0
    hidden: Number = 1.0


PYTHON = Arithmetic()


def rates(gpu: Gpu, peak_flops: float, constants: ProductConstants) -> Rates:
    """The rates of one GPU with these constants."""
    clock = float(gpu.clock_mhz)
    return Rates(
        gpu.sm_count,
        peak_flops / 1e6 / gpu.sm_count,
        constants.read_bytes_per_clock * clock,
        constants.write_bytes_per_clock * clock,
        constants.bandwidth_share * gpu.memory_bandwidth_bytes_per_s / 1e6,
        constants.l2_share * gpu.l2_bytes,
        STREAM_SHARE * gpu.memory_bandwidth_bytes_per_s / 1e6,
    )


def memory_us(
    product: Product, tile: tuple[int, int], rates: Rates, constants: ProductConstants, of: Arithmetic
) -> Any:
    """Time of the memory traffic; a wave of tiles covers a part of the result that is as square as it can be."""
    m, n, distinct = product.m, product.n, product.distinct
    area = rates.sm_count * of.min(tile[0], m) * of.min(tile[1], n)
    high = of.min(m, of.max(area**0.5, area / n))
    wide = of.min(n, area / high)
    once, passes = _traffic(product, rates)
    return passes * (1.0 / high + distinct / wide) + product.hidden * once + constants.lag_us


def written_us(product: Product, rates: Rates) -> Number:
    """Time of the writing that nothing hides."""
    return (1.0 - product.hidden) * _traffic(product, rates)[0] * rates.memory_bytes / rates.stream_bytes


def _traffic(product: Product, rates: Rates) -> tuple[Any, Any]:
    """Microseconds that writing the result takes, and that reading m x n x k elements would; none of it within L2."""
    batch, m, n, k, item, distinct, inputs, _ = product
    footprint = item * batch * (COPIES * k * n + inputs * distinct * m * k + m * n)
    cold = (1.0 - 1.0 / (1.0 + (footprint / rates.l2_bytes) ** 8)) * item * batch * m * n / rates.memory_bytes
    return cold, cold * k


def candidate_us(
    product: Product,
    tile: tuple[int, int],
    split: int,
    memory: Any,
    rates: Rates,
    constants: ProductConstants,
    of: Arithmetic = PYTHON,
) -> Any:
    """Time without the floor if the result is cut into these tiles, and k into so many parts."""
    batch, m, n, k, item = product[:5]
    high, wide = tile
    step = STEP_BYTES // item
    side = high * wide / (high + wide)
    multiply = 2.0 * high * wide * step * (side + constants.half_tile) / (side * constants.efficiency * rates.flops)
    load = STEP_BYTES * (of.min(high, m) + of.min(wide, n)) / rates.read_bytes
    steps = of.ceil(k / (step * split))
    blocks = batch * of.ceil(m / high) * of.ceil(n / wide) * split
    filled = blocks / rates.sm_count
    waves = of.max(1.0, filled + constants.tail * (of.ceil(filled) - filled))
    block = steps * of.max(of.max(multiply, load), constants.step_us) + constants.prologue_us
    compute = waves * (block + item * high * wide / rates.write_bytes)
    sharp = constants.sharpness
    both = (compute**sharp + memory**sharp) ** (1.0 / sharp)
    if split == 1:
        return both
    return both + constants.split_us + 8.0 * split * batch * m * n / (rates.sm_count * rates.read_bytes)


def slowdown(product: Product, rates: Rates, constants: ProductConstants) -> Any:
    """By what factor the power limit lengthens so much work."""
    peak_us = 2.0 * product.batch * product.m * product.n * product.k / (rates.flops * rates.sm_count)
    return 1.0 + constants.power * peak_us / (peak_us + LARGE_US)


@lru_cache(maxsize=256)
def _prepared(rates: Rates, constants: ProductConstants, item: int) -> tuple[tuple[Any, ...], ...]:
    """What does not depend on the product, for each tile: its sides, a step's multiply-adds, writing, smaller tiles."""
    found = []
    step = STEP_BYTES // item
    for high, wide in TILES:
        side = high * wide / (high + wide)
        multiply = 2.0 * high * wide * step * (side + constants.half_tile) / (side * constants.efficiency * rates.flops)
        written = constants.prologue_us + item * high * wide / rates.write_bytes
        halves = ((high // 2, wide) in TILES, (high, wide // 2) in TILES)
        found.append((high, wide, max(multiply, constants.step_us), written, *halves))
    return tuple(found)


def time_us(product: Product, rates: Rates, constants: ProductConstants) -> float:
    """The time without the floor of the fastest tile and split: the least of `candidate_us`.

    Options that a smaller product has and a larger one has not are the only ones left out, so that the time grows. What
    cannot be the fastest, since one of its parts alone takes longer, is not worked out.
    """
    best = math.inf
    batch, m, n, k, item, distinct, _, hidden = product
    ceil, sm_count, sharp, tail = math.ceil, rates.sm_count, constants.sharpness, constants.tail
    step = STEP_BYTES // item
    steps = ceil(k * item / STEP_BYTES)
    once, passes = _traffic(product, rates)
    once = hidden * once + constants.lag_us
    partial_us = 8.0 * batch * m * n / (sm_count * rates.read_bytes)
    for high, wide, multiply, written, half_high, half_wide in _prepared(rates, constants, item):
        if (half_high and 2 * m <= high) or (half_wide and 2 * n <= wide):
            continue  # the half of this tile does the same in less time
        blocks = batch * ceil(m / high) * ceil(n / wide)
        if blocks > MOST_WAVES * sm_count and high * wide < 8192 and best < math.inf:
            continue
        rows, columns = (high if high < m else m), (wide if wide < n else n)
        area = sm_count * rows * columns
        tall = min(m, max(area**0.5, area / n))
        memory = passes * (1.0 / tall + distinct / min(n, area / tall)) + once  # `memory_us`, for numbers
        if memory >= best:
            continue
        turn = max(multiply, STEP_BYTES * (rows + columns) / rates.read_bytes)
        for fewer, split in FEWER_SPLITS:
            if split > 1 and (fewer >= steps or blocks * split > 2 * sm_count):
                break
            filled = blocks * split / sm_count
            waves = max(1.0, filled + tail * (ceil(filled) - filled))
            compute = waves * (ceil(k / (step * split)) * turn + written)
            added = constants.split_us + split * partial_us if split > 1 else 0.0
            longer, shorter = (compute, memory) if compute > memory else (memory, compute)
            if longer + added < best:
                best = min(best, longer * (1.0 + (shorter / longer) ** sharp) ** (1.0 / sharp) + added)
    return best * float(slowdown(product, rates, constants)) + float(written_us(product, rates))


def thin_us(product: Product, rates: Rates, constants: ProductConstants) -> float:
    """The time without the floor of a thin result whose blocks share the SMs.

    Or, in 32 bits, of a product with a vector, or one of one step along k.
    """
    batch, m, n, k, item, distinct, _, hidden = product
    size = item * (distinct * m * k + k * n + m * n)
    if batch == 1 and item == 4 and min(m, n) == 1:
        return float(size / rates.stream_bytes)
    shallow = item == 4 and k * item <= STEP_BYTES and hidden
    if batch > 1 or (min(m, n) > THIN and not shallow) or k > THIN_DEPTH:
        return math.inf
    multiply_us = 2.0 * m * n * k / (THIN_RATE * constants.efficiency * rates.flops * rates.sm_count)
    if shallow:  # no loop along k: one block writes while another multiplies
        return float(size / rates.memory_bytes + THIN_RATE * multiply_us + constants.prologue_us + constants.lag_us)
    chain_us = math.ceil(k * item / STEP_BYTES) * constants.step_us + constants.prologue_us + constants.lag_us
    return float(chain_us + max(size / rates.memory_bytes, multiply_us))


class ProductFit(NamedTuple):
    """Constants as the data file has them, and the GPU that they were fitted on."""

    constants: ProductConstants
    gpu: str
    generation: str
    sustained_share: float
    compute_capability: tuple[int, int]
    scale: float = 1.0


@cache
def fitted() -> dict[tuple[str, str], tuple[ProductFit, ...]]:
    """The rows of `data/products.toml` by generation and precision."""
    found: dict[tuple[str, str], tuple[ProductFit, ...]] = {}
    for row in read("products").get("row", ()):
        constants = ProductConstants(*(row[name] for name in ProductConstants._fields))
        capability = gpus.find(row["gpu"]).compute_capability
        mine = ProductFit(constants, row["gpu"], row["generation"], row["sustained_share"], capability)
        key = row["generation"], row["precision"]
        found[key] = (*found.get(key, ()), mine)
    return found


@cache
def scales() -> dict[tuple[str, str], float]:
    """What products of a generation and precision reach of the rates of the constants that they borrow.

    The search for the published throughput of whole models found them (tools/calibration/calibrate_cost.py).
    """
    return {(row["generation"], row["precision"]): float(row["share"]) for row in read("curves").get("product", ())}


def row_for(gpu: Gpu, precision: str) -> tuple[ProductFit, bool] | None:
    """The constants that price a GPU's products, and whether they are its generation's; None where there are none.

    Of a generation with several kinds of multiprocessor (P100 and P4), the constants are those of the GPU's kind.
    """
    return row_of(gpu.generation, gpu.compute_capability, precision)


@cache
def row_of(generation: str, compute_capability: tuple[int, int], precision: str) -> tuple[ProductFit, bool] | None:
    """`row_for` of all GPUs that have this in common."""
    kind = _SERVED_BY.get(precision)
    nearest = NEAREST_FP32 if kind == "fp32" else NEAREST
    for relative in (generation, *nearest.get(generation, ())):
        rows = fitted().get((relative, kind), ()) if kind is not None else ()
        if rows:
            found = next((row for row in rows if row.compute_capability == compute_capability), rows[0])
            exact = relative == generation and precision in ("fp16", "bf16", "fp32")
            scale = scales().get((generation, "fp16" if precision == "bf16" else precision), 1.0)
            return found._replace(scale=scale), exact
    return None


def scaled(of: ProductConstants, part: float, clock: float) -> ProductConstants:
    """Constants where tensor cores keep `part` of their rate, and a power limit `clock` of the cores' clock."""
    return of._replace(
        efficiency=of.efficiency * part * clock,
        step_us=of.step_us / (part * clock),
        prologue_us=of.prologue_us / clock,
        read_bytes_per_clock=of.read_bytes_per_clock * clock,
        write_bytes_per_clock=of.write_bytes_per_clock * clock,
    )


def length_us(
    product: Product, problem: Problem, row: ProductFit, share: float, thin: bool = True
) -> tuple[float, float]:
    """(floor, time without it) of a product on the problem's GPU at `share` of the rate of the row's constants.

    `thin` says whether the library has kernels for thin results.
    """
    of, constants = _rates_at(share, problem, row)
    floor_us = constants.floor_us * floor_scale(problem.gpu.generation) / floor_scale(row.generation)
    length = time_us(product, of, constants)
    return floor_us, min(length, thin_us(product, of, constants)) if thin else length


def shortest_us(product: Product, problem: Problem, row: ProductFit) -> float:
    """What the multiply-adds of a product take at the rate of a large one, which no kernel of other tiles passes."""
    each_us = _large_us(*_rates_at(1.0, problem, row), product.item_bytes)
    return float(product.batch * product.m * product.n * product.k * each_us)


def _rates_at(share: float, problem: Problem, row: ProductFit) -> tuple[Rates, ProductConstants]:
    """The rates of the problem's GPU, and the constants behind them, at a share of the rate of the row's constants."""
    kept = sustained_share(problem.gpu, problem.precision, "convolution" in problem.name)
    clock = kept / row.sustained_share
    constants = scaled(row.constants, row.scale * share, clock)
    return rates(problem.gpu, problem.peak_flops, constants), constants


@lru_cache(maxsize=256)
def _large_us(rates: Rates, constants: ProductConstants, item: int) -> float:
    """Microseconds of a multiply-add of a large product."""
    return time_us(Product(1, LARGE, LARGE, LARGE, item), rates, constants) / LARGE**3


def price(problem: Problem) -> Price | None:
    """The time of a product, or None where no constants serve its precision or its shapes are not those of one."""
    found = row_for(problem.gpu, problem.precision)
    if found is None:
        return None
    row, exact = found
    try:
        sizes = flops.product_sizes(problem.signature, problem.name, problem.inputs)
    except IndexError:
        return None
    if not all(sizes) or problem.name in PACKED_WEIGHTS:
        return None
    batch, m, n, k = sizes
    if flops.is_set(problem.signature, "shared_b"):  # one matrix for all of the batch: its other operands lie in line
        sizes = (1, batch * m, n, k)
    elif flops.is_set(problem.signature, "shared_a"):
        sizes = (1, m, batch * n, k)
    exposed = problem.precision == "fp32" and problem.cuda_version >= EXPOSED.get(problem.gpu.generation, NEVER)
    product = Product(*sizes, problem.item_bytes, hidden=float(not exposed))
    floor_us, length = length_us(product, problem, row, problem.aligned_share)
    distance = "own GPU" if exact and problem.gpu.key == row.gpu else "own generation" if exact else "borrowed"
    family = "products fp32" if problem.precision == "fp32" else "products"
    width = band(family, distance, row.gpu, floor_us + length)
    if family == "products":
        width = max(width, unsure(problem.gpu, gpus.find(row.gpu)))
    copied = sum(rows * columns for which, rows, columns in (("a", m, k), ("b", k, n))
                 if flops.is_set(problem.signature, f"copied_{which}"))  # fmt: skip
    copies_ns = 1e9 * batch * copied * problem.item_bytes / problem.gpu.memory_bandwidth_bytes_per_s
    total_ns = 1000.0 * (floor_us + length) + copies_ns
    return Price(total_ns, 1000.0 * floor_us, width, own=distance == "own GPU")
