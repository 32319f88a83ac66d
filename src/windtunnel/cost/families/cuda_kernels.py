"""Kernels of the program's own in CUDA C++, by what their warps did, which the emulation counts.

    time = floor + barriers of the grid
         + max(time of the SMs, bytes / bandwidth of memory, sectors of all blocks / rate of L2)

An SM works on the blocks that fit by threads, registers and shared memory. Its time for one wave of them is the
longest of

- instructions issued, four a cycle;
- each pipe: lanes of fp32 and fp64 by the GPU's peaks, 64 of integers, 16 of conversions and of special functions,
  products of tensor cores by their peaks;
- memory's pipe: a wavefront of shared memory, or a line of 128 bytes that global accesses ask for, a cycle;
- latency: a block begins and ends, and its warps wait in turn for loads that need one another (or a few at a time),
  for shuffles, for shared memory and at barriers; the blocks of a wave do so side by side, and start one after another.

Atomics of one address wait for each other in L2. A barrier of the grid adds its trips to L2, and its blocks' atomics,
which are of one address.

The last wave takes as long as a full one. Registers are estimated by liveness. Rates are those of the CUDA C++
Programming Guide ("Arithmetic Instructions") and of `streams`; what is "fitted" is so on half of the kinds of
kernels that xlite-dev/LeetCUDA timed on an L20 (`make accuracy-cuda-kernels`)."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Protocol

from windtunnel.cost import cache
from windtunnel.cost.families import streams
from windtunnel.cost.families.problem import Price, Problem
from windtunnel.cost.files import shortest_ns
from windtunnel.gpus import Gpu
from windtunnel.operators.classes import CUDA, classify
from windtunnel.trace.operation import Signature

CLASSES = ("cuda",)
WARP = 32
SCHEDULERS = 4
"""Warp schedulers of an SM, each of which issues one instruction a cycle."""
INTEGER_LANES, SPECIAL_LANES, CONVERT_LANES = 64, 16, 16
L1_CYCLES, FURTHER_CYCLES = 35, 240
"""A load from L1, and what one from L2 takes beyond it: Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via
Microbenchmarking", and their like since."""
LOADS_IN_FLIGHT = 4
"""Loads that a warp starts before it waits for the first; assumed."""
BLOCK_CYCLES, START_CYCLES = 600, 120
"""What a block takes beside what it waits for, and what lies between the starts of two blocks on one SM; fitted."""
SHUFFLE_CYCLES, BARRIER_CYCLES, SHARED_CYCLES = 80, 100, 20
"""What a warp waits for each, on average: one that goes on alone with the others' sums has twice as many; fitted."""
SAME_ADDRESS_CYCLES = 3.9
"""Between two atomics of one address, in L2; fitted."""
PIPE_SHARE, MERGED = 0.7, 0.8
"""What pipes reach of their rates, under load and with instructions that wait for one another, and how many of the
wavefronts of shared memory that clang's code asks for are left where nvcc merges neighbouring reads; fitted."""
GRID_TRIPS = 4
"""To L2, of a barrier of the grid: a fence, an arrival, a look that comes too early and one that does not; assumed."""
ATOMIC_LANES = 1
"""Atomics of different addresses that an SM's part of L2 does a cycle; assumed."""
REGISTER_UNIT, SHARED_RESERVED = 256, 1024
"""Registers are given to a warp in such units; from 8.0 on each block takes 1 KiB of shared memory more."""
BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24}
MOST_BLOCKS = 32
BAND = 0.6
"""Holds four of five published times of the kinds of kernels that nothing was fitted on."""
TENSOR_PEAKS = {"f16": "fp16", "bf16": "bf16", "tf32": "tf32", "f64": "fp64_tensor", "s8": "int8", "u8": "int8",
    "s4": "int8",
                "u4": "int8", "e4m3": "fp8", "e5m2": "fp8"}  # fmt: skip


class Counted(Protocol):
    """What a launch counted (`ptx.Counters`)."""

    @property
    def blocks(self) -> int: ...
    @property
    def scale(self) -> float: ...
    @property
    def warp_instructions(self) -> Mapping[str, int]: ...
    @property
    def flops(self) -> Mapping[str, int]: ...
    @property
    def tensor_flops(self) -> Mapping[str, int]: ...
    @property
    def global_requests(self) -> int: ...
    @property
    def global_lines(self) -> int: ...
    @property
    def global_sectors(self) -> int: ...
    @property
    def global_load_sectors(self) -> int: ...
    @property
    def distinct_load_sectors(self) -> int: ...
    @property
    def read_bytes(self) -> int: ...
    @property
    def written_bytes(self) -> int: ...
    @property
    def shared_wavefronts(self) -> int: ...
    @property
    def atomic_lanes(self) -> int: ...
    @property
    def busiest_atomics(self) -> int: ...
    @property
    def loads_in_turn(self) -> int: ...
    @property
    def registers(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def grid_barriers(self) -> int: ...


def signature(name: str, counters: Counted) -> Signature:
    """A launch as data that any GPU can be asked the time of; `name` is the kernel's."""
    scale = counters.scale

    def total(value: float) -> int:
        return round(value * scale)

    detail: list[tuple[str, str | int]] = [
        ("blocks", counters.blocks), ("threads", counters.threads), ("registers", counters.registers),
        ("shared", counters.shared_bytes), ("requests", total(counters.global_requests)),
        ("lines", total(counters.global_lines)), ("loads", total(counters.global_load_sectors)), ("distinct_loads",
        total(counters.distinct_load_sectors)),
        ("stores", total(counters.global_sectors - counters.global_load_sectors)),
        ("wavefronts", total(counters.shared_wavefronts)), ("atomics", total(counters.atomic_lanes)),
        ("in_turn", counters.loads_in_turn),
    ]  # fmt: skip
    if counters.busiest_atomics:
        detail.append(("busiest", counters.busiest_atomics))
    if counters.grid_barriers:
        detail.append(("grid_barriers", counters.grid_barriers))
    detail += [(f"issued.{kind}", total(count)) for kind, count in sorted(counters.warp_instructions.items())]
    detail += [(f"tensor.{kind}", total(count)) for kind, count in sorted(counters.tensor_flops.items())]
    flops = total(sum(counters.flops.values()) + sum(counters.tensor_flops.values()))
    return Signature(
        CUDA + name,
        flops=flops,
        read_bytes=counters.read_bytes,
        written_bytes=counters.written_bytes,
        detail=tuple(detail),
    )


def numbers(of: Signature) -> dict[str, int]:
    return {key: int(value) for key, value in of.detail if not isinstance(value, str)}


def resident(counts: Mapping[str, int], gpu: Gpu) -> int:
    """How many blocks one SM holds at once."""
    threads = max(1, counts.get("threads", 1))
    warps = ceil(threads / WARP)
    most = BLOCKS.get(gpu.compute_capability, MOST_BLOCKS)
    room = [most, gpu.max_threads_per_sm // (warps * WARP)]
    per_warp = ceil(max(1, counts.get("registers", 32)) * WARP / REGISTER_UNIT) * REGISTER_UNIT
    room.append(gpu.registers_per_sm // (per_warp * warps))
    shared = counts.get("shared", 0) + (SHARED_RESERVED if gpu.compute_capability >= (8, 0) else 0)
    if shared:
        room.append(gpu.shared_memory_per_sm_bytes // shared)
    return max(1, min(room))


def occupancy(of: Signature, gpu: Gpu) -> float:
    """The part of the GPU that a kernel's blocks fill, in (0, 1]."""
    counts = numbers(of)
    return min(1.0, max(1, counts.get("blocks", 1)) / (resident(counts, gpu) * gpu.sm_count))


def pipes(counts: Mapping[str, int], gpu: Gpu) -> dict[str, float]:
    """Cycles that one SM would take for all of the launch's work, by what does it."""
    per_sm = 2 * gpu.sm_count * gpu.clock_mhz * 1e6
    fp32 = gpu.peak_flops["fp32"] / per_sm
    lanes = {
        "float.f32": fp32, "float.f64": gpu.peak_flops.get("fp64", gpu.peak_flops["fp32"] / 64) / per_sm,
        "float.f16": 2 * fp32,
        "float.f16x2": fp32 * 2, "float.bf16": fp32, "float.bf16x2": fp32, "integer": INTEGER_LANES,
        "special": SPECIAL_LANES,
        "call": SPECIAL_LANES, "special.f64": gpu.peak_flops.get("fp64", 1e12) / per_sm / 8, "convert": CONVERT_LANES,
        "warp": WARP,
    }  # fmt: skip
    issued = {key.removeprefix("issued."): count for key, count in counts.items() if key.startswith("issued.")}
    busy = {kind: WARP * count / lanes[kind] for kind, count in issued.items() if kind in lanes}
    busy["issue"] = sum(issued.values()) / SCHEDULERS
    for key, flops in counts.items():
        if key.startswith("tensor."):
            peak = gpu.peak_flops.get(TENSOR_PEAKS[key.removeprefix("tensor.")]) or gpu.peak_flops["fp32"]
            busy[key] = flops / (peak / (gpu.sm_count * gpu.clock_mhz * 1e6))
    busy = {kind: cycles / PIPE_SHARE for kind, cycles in busy.items()}
    busy["load and store"] = counts.get("lines", 0) + MERGED * counts.get("wavefronts", 0)
    return busy


def waiting(counts: Mapping[str, int]) -> float:
    """Cycles that a warp waits for what it has asked for, in turn."""
    warps = max(1, counts.get("blocks", 1)) * ceil(max(1, counts.get("threads", 1)) / WARP)
    sectors = max(1, counts.get("loads", 0) + counts.get("stores", 0))
    loads = counts.get("requests", 0) / warps * counts.get("loads", 0) / sectors
    misses = min(1.0, counts.get("distinct_loads", 0) / max(1, counts.get("loads", 0)))
    turns = max(counts.get("in_turn", 1), loads / LOADS_IN_FLIGHT) if loads else 0.0
    asked = {"warp": SHUFFLE_CYCLES, "barrier": BARRIER_CYCLES, "memory.shared": SHARED_CYCLES}
    others = sum(cycles * counts.get(f"issued.{kind}", 0) / warps for kind, cycles in asked.items())
    return turns * (L1_CYCLES + FURTHER_CYCLES * misses) + others


def price(problem: Problem) -> Price | None:
    """The time of one launch."""
    of, gpu = problem.signature, problem.gpu
    counts = numbers(of)
    blocks = max(1, counts.get("blocks", 1))
    busiest = max(pipes(counts, gpu).values(), default=0.0) / blocks
    # Blocks that share an SM share its pipes; the last ones have it to fewer.
    per_sm = ceil(blocks / gpu.sm_count)
    waves = ceil(per_sm / resident(counts, gpu))
    cycles = max(per_sm * max(busiest, START_CYCLES), waves * (BLOCK_CYCLES + waiting(counts)))
    sm_ns = 1e3 * cycles / gpu.clock_mhz
    size = float(of.read_bytes + of.written_bytes)
    memory_ns = cache.moved_ns(gpu, size, streams.bandwidth(gpu), known=problem.reused)
    sms = min(gpu.sm_count, blocks)
    traffic = streams.SECTOR_BYTES * (counts.get("distinct_loads", 0) + counts.get("stores", 0))
    l2_ns = 1e9 * traffic / min(cache.BYTES_PER_CLOCK * 1e6 * gpu.clock_mhz * sms, cache.bytes_per_s(gpu))
    atomic_cycles = counts.get("atomics", 0) / (ATOMIC_LANES * gpu.sm_count)
    atomic_ns = 1e3 * max(atomic_cycles, SAME_ADDRESS_CYCLES * counts.get("busiest", 0)) / gpu.clock_mhz
    barrier_cycles = GRID_TRIPS * (L1_CYCLES + FURTHER_CYCLES) + blocks / ATOMIC_LANES
    grid_ns = 1e3 * counts.get("grid_barriers", 0) * barrier_cycles / gpu.clock_mhz
    floor_ns = shortest_ns(classify(of.name), gpu.generation)
    return Price(floor_ns + grid_ns + max(sm_ns, memory_ns, l2_ns, atomic_ns), floor_ns, BAND)
