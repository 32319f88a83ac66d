"""Where the generator of an emulated device is: a seed and an offset, as in CUDA's Philox generator."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from windtunnel.machine.device import Device
from windtunnel.machine.memory.blocks import Block

if TYPE_CHECKING:

    class Generator(torch.Generator):
        """PyTorch's generator, with the address of what it is in C++."""

        _cdata: int

else:
    Generator = torch._C.Generator

stock_manual_seed = torch._C.Generator.manual_seed
BLOCK, UNROLL = 256, 4
MASK = (1 << 64) - 1
MIXER = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio, which keeps the seeds of neighbours apart


Taken = tuple[Device, Block]
"""A block, and the device that it is from."""


class Position:
    """Where a device's generator is: its seed, and how far the kernels so far have moved it on.

    `graphs` are those that it is registered with, `blocks` the device's memory through which they draw from it.
    `moves` counts how often a program set it. `start_of_graph` is its offset where the graph began that is captured or
    replayed, from which a capture counts; `record` writes down what a replay does between its operators.
    """

    __slots__ = ("blocks", "graphs", "moves", "offset", "record", "seed", "start_of_graph")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.offset = 0
        self.moves = 0
        self.start_of_graph: int | None = None
        self.record: Callable[[Callable[[], None]], None] | None = None
        self.graphs: set[int] = set()
        self.blocks: list[Taken] = []

    def go_to(self, seed: int, offset: int = 0) -> None:
        """Go on from there; so does every generator that shares this place."""
        self.seed, self.offset = seed, offset
        self.moves += 1

    def go_to_in_graph(self, offset: int) -> None:
        """Go on from an offset that counts from the beginning of the graph."""
        self.offset = (self.start_of_graph or 0) + offset
        self.moves += 1
        if self.record is not None:
            self.record(partial(self.go_to_in_graph, offset))

    def start(self, generator: torch._C.Generator) -> None:
        """Make a physical generator ready for one operator's numbers; at offset 0 they are the CPU's of that seed."""
        stock_manual_seed(generator, (self.seed ^ (self.offset * MIXER)) & MASK)

    def advance(self, elements: int, threads: int) -> None:
        """Move on by what a kernel for so many elements uses up on a device of so many threads in all.

        Four numbers a call of curand4, one call a thread and round (ATen/native/cuda/DistributionTemplates.h,
        calc_execution_policy).
        """
        if elements:
            blocks = min(-(-elements // BLOCK), max(1, threads // BLOCK))
            self.offset += ((elements - 1) // (BLOCK * blocks * UNROLL) + 1) * UNROLL
