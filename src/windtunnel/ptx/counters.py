"""What a launch did, counted exactly: instructions by kind, bytes by sector, wavefronts of shared memory, lanes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from windtunnel.ptx.dependence import loads_in_turn
from windtunnel.ptx.emitter import Site
from windtunnel.ptx.flow import Graph, facts_of
from windtunnel.ptx.semantics.matrix import SHAPE
from windtunnel.ptx.syntax import BYTES, Instruction
from windtunnel.ptx.values import LANES

FREE = ("mov", "cvta", "bra", "ret", "exit", "ld.param")
"""What the assembler folds into other instructions, or places where no count is kept."""


@dataclass(frozen=True)
class Counters:
    """Sums over the counted blocks; `scale` is all blocks by the counted ones."""

    blocks: int
    counted_blocks: int
    warp_instructions: Mapping[str, int]
    """By class: `float.f32`, `integer`, `special`, `memory.global`, `memory.shared`, `atomic`, `tensor`, ..."""
    lanes: int
    """Lanes that were active, over all warp instructions."""
    flops: Mapping[str, int]
    """Floating-point operations by type, an fma as two."""
    tensor_flops: Mapping[str, int]
    global_requests: int
    global_lines: int
    """Of 128 bytes, in each access."""
    global_sectors: int
    """Of 32 bytes, as the warps' accesses touch them."""
    global_load_sectors: int
    global_bytes: int
    distinct_load_sectors: int
    """Sectors that a block touches, once each, summed over blocks: what L1 has to fetch if it holds a block's data."""
    distinct_store_sectors: int
    read_bytes: int
    """Bytes of all blocks together, once each: what DRAM moves at least. At most the touched parts of the
    allocations."""
    written_bytes: int
    shared_requests: int
    shared_wavefronts: int
    atomic_lanes: int
    busiest_atomics: int
    """Of the whole launch, those of the one address of global memory that most of them meet at."""
    loads_in_turn: int
    """Loads of global memory that wait for one another, in a thread."""
    registers: int
    """A thread's, estimated by liveness."""
    shared_bytes: int
    threads: int
    """Of a block."""
    grid_barriers: int = 0
    """How often all blocks waited for each other."""

    @property
    def scale(self) -> float:
        return self.blocks / self.counted_blocks if self.counted_blocks else 0.0

    @property
    def exact(self) -> bool:
        return self.blocks == self.counted_blocks

    @property
    def issued(self) -> int:
        return sum(self.warp_instructions.values())

    @property
    def active_lanes(self) -> float:
        """The mean share of a warp's lanes that run."""
        return self.lanes / (LANES * self.issued) if self.issued else 0.0


def classify(graph: Graph, i: Instruction) -> str | None:
    """The class an instruction is counted in; None if it costs nothing."""
    if i.name in FREE or (i.name == "ld" and i.opcode[1].startswith("param")):
        return None
    kind = facts_of(graph.table, i).kind.value
    if kind == "float":
        return f"float.{i.type}" if i.type in ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64") else "integer"
    if kind == "special" and i.type == "f64":
        return "special.f64"
    if kind in ("memory", "atomic"):
        shared = any(part.startswith("shared") for part in i.opcode) and i.name != "cp"
        return f"{kind}.shared" if shared else f"{kind}.local" if i.has("local") else f"{kind}.global"
    return kind


def operations(i: Instruction) -> tuple[str, int] | None:
    """The type and number of floating-point operations of one lane."""
    kind = i.type
    if kind not in ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64"):
        return None
    if i.name in ("fma", "mad"):
        count = 2
    elif i.name in (
        "add",
        "sub",
        "mul",
        "div",
        "ex2",
        "lg2",
        "sin",
        "cos",
        "tanh",
        "rcp",
        "sqrt",
        "rsqrt",
        "min",
        "max",
    ):
        count = 1
    else:
        return None
    return kind.removesuffix("x2"), count * (2 if kind.endswith("x2") else 1)


@functools.cache
def work(graph: Graph) -> tuple[tuple[dict[str, int], dict[str, int], dict[str, int]], ...]:
    """Of each block: instructions by class, floating-point operations of a lane, and those of a warp's tensor cores."""
    return tuple(_work(graph, block) for block in graph.blocks)


def _work(graph: Graph, block: Sequence[Instruction]) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    issued: dict[str, int] = {}
    flops: dict[str, int] = {}
    tensor: dict[str, int] = {}
    for instruction in block:
        kind = classify(graph, instruction)
        if kind is None:
            continue
        issued[kind] = issued.get(kind, 0) + 1
        done = operations(instruction)
        if done:
            flops[done[0]] = flops.get(done[0], 0) + done[1]
        if kind == "tensor":
            shape = next(found for part in instruction.opcode if (found := SHAPE.fullmatch(part)))
            m, n, k = (int(number) for number in shape.groups())
            name = instruction.opcode[-3]
            tensor[name] = tensor.get(name, 0) + 2 * m * n * k
    return issued, flops, tensor


@functools.cache
def registers(graph: Graph) -> int:
    """The most registers of 32 bits that live at the start of a block of instructions, and some for addresses."""

    def width(name: str) -> int:
        kind = graph.registers[name]
        return 0 if kind == "pred" else max(1, BYTES[kind] // 4)

    most = max((sum(width(r) for r in live) for live in graph.live), default=0)
    return min(255, max(16, most + 8))


def count(
    graph: Graph,
    block_counts: Sequence[int],
    sites: Iterable[tuple[Site, Sequence[int]]],
    *,
    blocks: int,
    counted: int,
    shared_bytes: int,
    threads: int,
    distinct: tuple[int, int],
    touched: tuple[int, int],
    busiest: tuple[int, bool] = (0, False),
    grid_barriers: int = 0,
) -> Counters:
    """`block_counts`: executions and lanes of each basic block; of each site: requests, lanes, sectors, wavefronts,
    bytes, lines. `busiest`: how many atomics met at one address, and whether those of several blocks did."""
    issued: dict[str, int] = {}
    flops: dict[str, int] = {}
    tensor: dict[str, int] = {}
    lanes = 0
    for index, block in enumerate(work(graph)):
        executions, active = block_counts[2 * index], block_counts[2 * index + 1]
        if not executions:
            continue
        for sums, one, times in zip((issued, flops, tensor), block, (executions, active, executions), strict=True):
            for name, number in one.items():
                sums[name] = sums.get(name, 0) + number * times
        lanes += sum(block[0].values()) * active
    totals = dict.fromkeys(("requests", "lines", "sectors", "loads", "bytes", "shared", "wavefronts", "atomics"), 0)
    for site, (requests, active, sectors, wavefronts, moved, lines) in sites:
        if site.kind == "atomic":
            totals["atomics"] += active
        if wavefronts:
            totals["shared"] += requests if not sectors else 0
            totals["wavefronts"] += wavefronts
        if sectors and site.space != "local":
            totals["requests"] += requests
            totals["lines"] += lines
            totals["sectors"] += sectors
            totals["bytes"] += moved
            if site.kind == "load":
                totals["loads"] += sectors
    return Counters(
        blocks=blocks, counted_blocks=counted, warp_instructions=issued, lanes=lanes, flops=flops, tensor_flops=tensor,
        global_requests=totals["requests"], global_lines=totals["lines"], global_sectors=totals["sectors"],
        global_load_sectors=totals["loads"],
        global_bytes=totals["bytes"], shared_requests=totals["shared"], shared_wavefronts=totals["wavefronts"],
        distinct_load_sectors=distinct[0], distinct_store_sectors=distinct[1],
        read_bytes=min(touched[0], round(32 * distinct[0] * blocks / max(counted, 1))),
        written_bytes=min(touched[1], round(32 * distinct[1] * blocks / max(counted, 1))),
        atomic_lanes=totals["atomics"],
        busiest_atomics=round(busiest[0] * blocks / max(counted, 1)) if busiest[1] else busiest[0],
        loads_in_turn=loads_in_turn(graph), registers=registers(graph), shared_bytes=shared_bytes, threads=threads,
        grid_barriers=grid_barriers,
    )  # fmt: skip
