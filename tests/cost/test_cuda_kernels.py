"""Kernels in CUDA C++: their price from counts beside published times, and how the parts of the model behave."""

from __future__ import annotations

import pytest

from windtunnel import gpus
from windtunnel.cost.families import cuda_kernels
from windtunnel.cost.families.problem import Problem
from windtunnel.trace.operation import Signature

SIZE = 4096
FMA = 2_155_872_256
# Counts of six matrix products of 4096 cubed, written after siboehm.com/articles/22/CUDA-MMM, and that article's
# GFLOP/s on an A6000.
PRODUCTS = {
    "naive": (309.0, {
        "blocks": 16384, "threads": 1024, "registers": 30, "shared": 0, "requests": 4303355904, "lines": 71135395840,
        "loads": 71001178112, "distinct_loads": 553648128, "stores": 134217728, "wavefronts": 0,
        "issued.float.f32": FMA,
        "issued.integer": 14038335488, "issued.memory.global": 4303355904}),
    "coalesced": (1986.5, {
        "blocks": 16384, "threads": 1024, "registers": 33, "shared": 0, "requests": 4303355904, "lines": 4303355904,
        "loads": 10754195456, "distinct_loads": 553648128, "stores": 16777216, "wavefronts": 0, "issued.float.f32": FMA,
        "issued.integer": 4932501504, "issued.memory.global": 4303355904}),
    "shared": (2980.3, {
        "blocks": 16384, "threads": 1024, "registers": 40, "shared": 8192, "requests": 142606336, "lines": 142606336,
        "loads": 553648128, "distinct_loads": 553648128, "stores": 16777216, "wavefronts": 4429185024,
        "issued.float.f32": FMA,
        "issued.integer": 2738880512, "issued.memory.global": 142606336, "issued.memory.shared": 4429185024}),
    "tiles": (8474.7, {
        "blocks": 4096, "threads": 512, "registers": 49, "shared": 4096, "requests": 75497472, "lines": 176160768,
        "loads": 285212672, "distinct_loads": 285212672, "stores": 16777216, "wavefronts": 2483027968,
        "issued.float.f32": FMA,
        "issued.integer": 1297088512, "issued.memory.global": 75497472, "issued.memory.shared": 2483027968}),
    "tiles of tiles": (15971.7, {
        "blocks": 1024, "threads": 256, "registers": 135, "shared": 8192, "requests": 41943040, "lines": 150994944,
        "loads": 268435456, "distinct_loads": 150994944, "stores": 134217728, "wavefronts": 1644167168,
        "issued.float.f32": FMA,
        "issued.integer": 242352128, "issued.memory.global": 41943040, "issued.memory.shared": 570425344}),
    "vectors": (18237.3, {
        "blocks": 1024, "threads": 256, "registers": 110, "shared": 8192, "requests": 14680064, "lines": 117440512,
        "loads": 234881024, "distinct_loads": 150994944, "stores": 33554432, "wavefronts": 1409286144,
        "issued.float.f32": FMA,
        "issued.integer": 215941120, "issued.memory.global": 14680064, "issued.memory.shared": 562036736}),
}  # fmt: skip


def price_ns(gpu: str, read: int = 0, written: int = 0, **counts: int) -> float:
    model = gpus.find(gpu)
    detail = tuple((key.replace("__", "."), value) for key, value in counts.items())
    signature = Signature("cuda::k", read_bytes=read, written_bytes=written, detail=detail)
    found = cuda_kernels.price(Problem(signature, "k", (), "fp32", model.peak_flops["fp32"], 4, 1.0, model))
    assert found is not None
    return found.duration_ns


@pytest.mark.parametrize("name", PRODUCTS)
def test_published_products(name: str) -> None:
    published, counts = PRODUCTS[name]
    signature = Signature(
        "cuda::k", read_bytes=3 * 4 * SIZE**2, written_bytes=4 * SIZE**2, detail=tuple(counts.items())
    )
    model = gpus.find("A6000")
    found = cuda_kernels.price(Problem(signature, "k", (), "fp32", model.peak_flops["fp32"], 4, 1.0, model))
    assert found is not None
    assert 1 / 2.5 < 2 * SIZE**3 / found.duration_ns / published < 2.5


def test_half_of_the_products_are_within_a_third() -> None:
    near = 0
    for published, counts in PRODUCTS.values():
        rate = (
            2
            * SIZE**3
            / price_ns("A6000", 3 * 4 * SIZE**2, 4 * SIZE**2, **{k.replace(".", "__"): v for k, v in counts.items()})
        )
        near += abs(rate / published - 1) < 0.33
    assert near >= 4


SAXPY = {"blocks": 65536, "threads": 256, "registers": 20, "requests": 3 << 19, "lines": 3 << 19, "loads": 2 << 21,
         "distinct_loads": 2 << 21, "stores": 1 << 21, "issued__float__f32": 1 << 19,
         "issued__memory__global": 3 << 19}  # fmt: skip


def test_a_stream_takes_the_time_of_its_bytes() -> None:
    size = 4 << 24
    expected = 1e9 * 3 * size / gpus.find("A100").memory_bandwidth_bytes_per_s
    assert price_ns("A100", 2 * size, size, **SAXPY) == pytest.approx(expected, rel=0.25)


def test_conflicts_and_lines_cost_time() -> None:
    base = dict(SAXPY, wavefronts=1 << 22)
    assert price_ns("A100", **dict(base, wavefronts=1 << 25)) > 3 * price_ns("A100", **base)
    assert price_ns("A100", **dict(SAXPY, lines=3 << 24)) > 4 * price_ns("A100", **SAXPY)


def test_occupancy_by_threads_registers_and_shared_memory() -> None:
    gpu = gpus.find("A100")
    assert cuda_kernels.resident({"threads": 1024, "registers": 16}, gpu) == 2
    assert cuda_kernels.resident({"threads": 256, "registers": 128}, gpu) == 2
    assert cuda_kernels.resident({"threads": 64, "registers": 16, "shared": 48 << 10}, gpu) == 3
    assert cuda_kernels.resident({"threads": 32, "registers": 16}, gpu) == 32
    assert cuda_kernels.resident({"threads": 32, "registers": 16}, gpus.find("T4")) == 16


def test_few_blocks_leave_the_gpu_idle() -> None:
    whole = dict(SAXPY, issued__float__f32=1 << 26)
    few = dict(whole, blocks=4)
    assert price_ns("A100", **few) > 20 * price_ns("A100", **whole)


def test_atomics_of_one_address_wait_for_each_other() -> None:
    spread = dict(SAXPY, atomics=1 << 16)
    assert price_ns("L20", **spread) == price_ns("L20", **SAXPY)
    one = price_ns("L20", **dict(spread, busiest=1 << 16))
    assert 90_000 < one < 110_000  # LeetCUDA's dot product of half precision, 65,536 blocks: 101 us


def test_loads_that_need_one_another_and_blocks_take_their_latency() -> None:
    # LeetCUDA's relu of 4096 x 1024 halves (15.6 us) and embedding of 2048 rows of 1024 floats (11.5 us), a thread an
    # element, of which the latter looks up a row first.
    relu = {"blocks": 4096, "threads": 1024, "registers": 16, "requests": 262144, "lines": 262144, "loads": 262144,
            "distinct_loads": 262144, "stores": 262144, "issued__integer": 917504, "in_turn": 1}  # fmt: skip
    rows = dict(relu, blocks=2048, requests=196608, lines=196608, loads=327680, distinct_loads=327680, in_turn=2)
    assert price_ns("L20", **relu) == pytest.approx(15_600, rel=0.2)
    assert price_ns("L20", **rows) == pytest.approx(11_500, rel=0.2)
