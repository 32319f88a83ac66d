"""Kernels of the program's own in Triton, by what their loads, stores and products touched.

    time = floor + max(products / rate, sectors of memory / bandwidth, all sectors asked for / rate of L2)

Products reach the share of the peak that Triton's own tutorial of matrix multiplication reports on an A100 (about 220
of 312 TFLOP/s in half precision, as much as cuBLAS there). Programs run in waves of as many as fit on the SMs at once,
and the last wave takes as long as a full one. L2's rate is that of `cache`. None of this is fitted on timings of
Triton kernels: the band says so.
"""

from __future__ import annotations

from math import ceil

from windtunnel.cost import cache
from windtunnel.cost.curves import UNKNOWN_BAND
from windtunnel.cost.families import streams
from windtunnel.cost.families.problem import Price, Problem
from windtunnel.cost.files import shortest_ns
from windtunnel.gpus import Gpu
from windtunnel.operators.classes import classify
from windtunnel.trace.operation import Signature

CLASSES = ("triton",)
PRODUCT_SHARE = 0.7
"""What products reach of the peak: 220 of 312 TFLOP/s, the figure of Triton's tutorial "Matrix Multiplication"."""
WARP = 32
MOST_PROGRAMS = 32
"""Thread blocks that an SM holds at most (CUDA C++ Programming Guide, "Technical Specifications"; 16 on some)."""


def number(signature: Signature, name: str, default: int = 0) -> int:
    """A detail that is a number."""
    return int(dict(signature.detail).get(name, default))


def resident(signature: Signature, gpu: Gpu) -> int:
    """How many programs one SM holds at once, by their threads and their shared memory."""
    threads = WARP * max(1, number(signature, "warps", 4))
    shared = number(signature, "shared")
    room = [MOST_PROGRAMS, gpu.max_threads_per_sm // threads]
    if shared:
        room.append(gpu.shared_memory_per_sm_bytes // shared)
    return max(1, min(room))


def occupancy(signature: Signature, gpu: Gpu) -> float:
    """The part of the GPU that a kernel's programs fill, in (0, 1]."""
    return min(1.0, max(1, number(signature, "programs", 1)) / (resident(signature, gpu) * gpu.sm_count))


def price(problem: Problem) -> Price | None:
    """The time of one launch."""
    signature, gpu = problem.signature, problem.gpu
    programs = max(1, number(signature, "programs", 1))
    peak = gpu.peak_flops.get(problem.precision) or gpu.peak_flops["fp32"]
    at_once = resident(signature, gpu) * gpu.sm_count
    waves = programs / at_once
    # A wave that is not full runs on fewer SMs, each with fewer programs to hide its latency.
    lost = ceil(waves) / waves if waves > 1 else max(1.0, gpu.sm_count / programs)
    products_ns = 1e9 * signature.flops / (peak * PRODUCT_SHARE) * lost
    size = float(signature.read_bytes + signature.written_bytes)
    memory_ns = cache.moved_ns(gpu, size, streams.bandwidth(gpu), known=problem.reused)
    sms = min(gpu.sm_count, programs)
    l2_rate = cache.BYTES_PER_CLOCK * 1e6 * gpu.clock_mhz * sms
    traffic_ns = 1e9 * number(signature, "traffic") / l2_rate
    floor_ns = shortest_ns(classify(signature.name), gpu.generation)
    return Price(floor_ns + max(products_ns, memory_ns, traffic_ns), floor_ns, UNKNOWN_BAND)
