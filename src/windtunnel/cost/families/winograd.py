"""Convolutions of 3 x 3 filters and stride 1 without tensor cores, as cuDNN computes them: the fastest of three ways.

The names of the kernels, their grids and their times are those of NeuSight's table of 24,662 convolutions on five GPUs
(cuDNN 8.9):

- direct: blocks of 128 positions and 32, 64 or 128 channels, 9 C steps of one multiply-add for each result;
- fused: Winograd's F(2x2, 3x3) within one kernel, a block for 4 x 8 tiles of 2 x 2 results, of one image or of several,
  and 32 channels; 16 products instead of 36, along C steps. A kernel before it transforms the filters;
- apart: F(4x4, 3x3), 36 batched products (tiles of 4 x 4 results, C, K) between kernels that write transformed tensors
  to memory and read them.

The blocks of each go over the multiprocessors: a step takes `rate` cycles for each lane's multiply-add and block, and
at least `wait` more; beginning and ending a block takes `block` cycles. The gradient of the data is such a convolution
with the channels exchanged, that of the weights 36 products of (C, tiles, K). Dilated filters have only the first way.

The constants are fitted, a row a GPU: `data/winograd.toml` (`tools/calibration/calibrate_winograd.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from windtunnel import gpus
from windtunnel.cost.families.products import PYTHON, Arithmetic, Number
from windtunnel.cost.files import read
from windtunnel.cost.power import sustained_share
from windtunnel.gpus import Gpu
from windtunnel.trace.plain import Json

KERNEL_US = 4.0
"""What each kernel of a way takes beside its blocks."""
FUSED_BLOCK = 32 * 32 * 16
"""Products of a step of a fused block: of 32 tiles, 32 channels and 16 points."""
POINTS = 36
"""Products of a tile of 4 x 4 results, for each pair of channels."""
DIRECT_COLUMNS = (32, 64, 128)
TILES = {"volta": (64, 64), "turing": (128, 64), "pascal": (64, 64)}
"""Tiles of the products between transforms, where they are not of 128 x 128."""
SHAPES = {
    "pascal": ((1, 4, 8), (2, 4, 4), (4, 4, 2), (2, 2, 8), (4, 2, 4), (4, 1, 8)),
    "volta": ((1, 4, 8),),
    "turing": ((1, 4, 8),),
}
"""Images, rows and columns of tiles of a fused block; the names of the kernels carry such numbers."""
LATER_SHAPES = ((1, 4, 8), (4, 4, 2))
MOST_WORKSPACE = 640 << 20
"""Bytes that transforms of their own write at most: no measured convolution wrote more, and whole segmentation networks
on a V100 (MMSegmentation's model zoo) leave no time for it in layers that would."""
MANY_CHANNELS = 512
"""From so many channels on, what has no room for that takes as long as the direct way: heads of the same networks."""
BORROWED = "ampere"
"""Whose constants serve generations that have none of their own."""


class Work(NamedTuple):
    """Images, channels that are read and made, and the rows and columns of the results."""

    images: Number
    read: Number
    made: Number
    rows: Number
    columns: Number


class Blocks(NamedTuple):
    """What blocks take, in cycles: a lane's multiply-add, the wait of a step for each of its lanes', a block's ends."""

    rate: float
    wait: float
    block: float


class Constants(NamedTuple):
    """A row of the data file. `filters` are the cycles of all multiprocessors for each filter that is transformed, and
    `moved` the share of the bandwidth that transforms reach."""

    direct: Blocks
    fused: Blocks
    apart: Blocks
    filters: float
    moved: float


class Machine(NamedTuple):
    """A GPU, and the part of its clock that it keeps of what the constants' GPU does."""

    gpu: Gpu
    clock: float = 1.0

    @property
    def cycles_per_us(self) -> float:
        return self.gpu.clock_mhz * self.clock

    @property
    def lanes(self) -> float:
        """Multiply-adds of a multiprocessor in a cycle."""
        return self.gpu.peak_flops["fp32"] / (2e6 * self.gpu.sm_count * self.gpu.clock_mhz)

    def blocks_us(self, of: Blocks, number: Number, steps: Number, results: Number, math: Arithmetic) -> Number:
        """The time of so many blocks of so many steps, each a multiply-add for each of so many results."""
        filled = number / self.gpu.sm_count
        stepping = steps * results / self.lanes * (of.rate * filled + of.wait)
        return (stepping + of.block * math.max(1.0, filled)) / self.cycles_per_us


def direct_us(work: Work, of: Constants, on: Machine, math: Arithmetic = PYTHON) -> Number:
    """The time of a convolution without transforms."""
    high = math.ceil(work.images * work.rows * work.columns / 128)
    narrow, middle, broad = (
        on.blocks_us(of.direct, high * math.ceil(work.made / wide), 9 * work.read, 128 * wide, math)
        for wide in DIRECT_COLUMNS
    )
    return 2 * KERNEL_US + math.min(math.min(narrow, middle), broad)


def fused_us(work: Work, of: Constants, on: Machine, math: Arithmetic = PYTHON) -> Number:
    """The time of a convolution whose kernel transforms what it reads and writes."""
    number = None
    for images, rows, columns in SHAPES.get(on.gpu.generation, LATER_SHAPES):
        tiles = math.ceil(work.rows / (2 * rows)) * math.ceil(work.columns / (2 * columns))
        blocks = math.ceil(work.images / images) * tiles * math.ceil(work.made / 32)
        number = blocks if number is None else math.min(number, blocks)
    filters_us = of.filters * work.read * work.made / (on.gpu.sm_count * on.cycles_per_us)
    return 2 * KERNEL_US + filters_us + on.blocks_us(of.fused, number, work.read, FUSED_BLOCK, math)


def apart_us(work: Work, of: Constants, on: Machine, math: Arithmetic = PYTHON) -> Number:
    """The time of a convolution whose transforms are kernels of their own."""
    tiles = _tiles(work, math)
    return _between_us((tiles, work.made, work.read), work, of, on, math)


WAYS: tuple[Callable[..., Number], ...] = (direct_us, fused_us, apart_us)


def weights_us(work: Work, of: Constants, on: Machine, math: Arithmetic = PYTHON) -> Number:
    """The time of a gradient of the weights with transforms."""
    return _between_us((work.read, work.made, _tiles(work, math)), work, of, on, math)


def ways_of(work: Work, dilated: bool) -> tuple[Callable[..., Number], ...]:
    """The ways that cuDNN has for a convolution or a gradient of the data."""
    if not dilated and has_room(work):
        return WAYS
    return (direct_us,) if dilated or work.made >= MANY_CHANNELS else (direct_us, fused_us)


def has_room(work: Work) -> bool:
    """Whether transforms of their own may write what they need."""
    return bool(4 * POINTS * _transformed(work, PYTHON) <= MOST_WORKSPACE)


def _tiles(work: Work, math: Arithmetic) -> Number:
    return work.images * math.ceil(work.rows / 4) * math.ceil(work.columns / 4)


def _transformed(work: Work, math: Arithmetic) -> Number:
    """The elements of one point of both tensors and the weights."""
    return _tiles(work, math) * (work.read + work.made) + work.read * work.made


def _between_us(
    product: tuple[Number, Number, Number], work: Work, of: Constants, on: Machine, math: Arithmetic
) -> Number:
    """The time of 36 products of m x k by k x n, and of the transforms before and after them."""
    m, n, k = product
    high, wide = TILES.get(on.gpu.generation, (128, 128))
    number = POINTS * math.ceil(m / high) * math.ceil(n / wide)
    plain = work.images * work.rows * work.columns * (work.read + work.made) + 9 * work.read * work.made
    size = 4 * (plain + POINTS * _transformed(work, math))
    moved_us = size / (of.moved * on.gpu.memory_bandwidth_bytes_per_s * 1e-6)
    return 4 * KERNEL_US + moved_us + on.blocks_us(of.apart, number, k, high * wide, math)


def of_row(row: Json) -> Constants:
    """The constants of a row of the data file."""
    direct, fused, apart = (Blocks(*row[name]) for name in ("direct", "fused", "apart"))
    return Constants(direct, fused, apart, row["filters"], row["moved"])


@cache
def fitted(generation: str, compute_capability: tuple[int, int]) -> tuple[Constants, str]:
    """The constants that price a GPU of these, and which GPU's they are."""
    rows = [(row, gpus.find(row["gpu"])) for row in read("winograd")["row"]]
    mine = [one for one in rows if one[1].generation == generation]
    mine = mine or [one for one in rows if one[1].generation == BORROWED]
    row, gpu = next((one for one in mine if one[1].compute_capability == compute_capability), mine[0])
    return of_row(row), gpu.key


def constants_for(gpu: Gpu) -> tuple[Constants, Machine, str]:
    """The constants that price a GPU, the GPU at its clock, and how near they are: own GPU, own generation, borrowed.

    A card that a power limit slows is slower by that than the one that was timed; none is faster by it.
    """
    constants, key = fitted(gpu.generation, gpu.compute_capability)
    timed = gpus.find(key)
    clock = min(1.0, sustained_share(gpu, "fp32") / sustained_share(timed, "fp32"))
    near = "own GPU" if key == gpu.key else "own generation" if timed.generation == gpu.generation else "borrowed"
    return constants, Machine(gpu, clock), near
