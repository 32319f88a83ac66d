"""Fourier transforms as cuFFT takes them: passes over the data, each with a shortest time.

    time = sum over passes of (kernel_us + point_us * points of one block) + bytes of all passes / bandwidth

- A transform of up to `ONE_KERNEL` points runs in one kernel, each in a block of its own, whose latency grows with the
  points. A longer one is cut into factors, each a pass over the whole data (cuFFT's documentation, "Accuracy and
  performance": Cooley-Tukey with building blocks). Each transformed dimension takes passes of its own.
- Lengths with prime factors above `LARGEST_PRIME` take Bluestein's algorithm: two transforms of the next power of two
  from 2 n - 1 on, and three passes of products (the same page).
- PyTorch scales the result of an inverse transform in a kernel of its own (aten/src/ATen/native/cuda/SpectralOps.cpp).

The constants are fitted on 56 published times of an RTX 3080 (`make calibrate`, `data/solvers.toml`); other cards
take them with their own bandwidth, double precision is assumed to fit half as many points into a kernel.
"""

from __future__ import annotations

from functools import cache
from math import ceil, log2, prod

from windtunnel.cost import flops
from windtunnel.cost.bands import band
from windtunnel.cost.cache import moved_ns
from windtunnel.cost.families import streams
from windtunnel.cost.families.problem import Price, Problem
from windtunnel.cost.files import floor_scale, read

CLASSES = ("fft",)
ONE_KERNEL = 1 << 14
"""Points of the longest transform that one kernel takes: seen in the timings, whose bytes double beyond."""
LARGEST_PRIME = 127
"""The largest prime factor that cuFFT has building blocks for; longer ones go Bluestein's way."""
_TRANSFORMS = ("fft_c2c", "fft_c2r", "fft_r2c")


@cache
def constants() -> dict[str, float]:
    """The fitted constants: `kernel_us`, `point_us`, `single_share` and `several_share` of the bandwidth."""
    row = read("solvers")["fft"][0]
    return {name: float(row[name]) for name in ("kernel_us", "point_us", "single_share", "several_share")}


def price(problem: Problem) -> Price | None:
    """The time of a transform; None for what only moves data (`fft_fftshift`) and what is made of other operators."""
    if not problem.name.lstrip("_").startswith(_TRANSFORMS):
        return None
    signature, gpu = problem.signature, problem.gpu
    shapes = signature.shapes
    whole = max(shapes, key=prod, default=())
    if not whole or not prod(whole):
        return None
    size = float(flops.bytes_moved(signature))
    lengths = [whole[at] for at in dimensions(problem, len(whole))]
    double = any(one.removeprefix("torch.") in ("float64", "complex128") for one in signature.dtypes)
    longest = ONE_KERNEL // 2 if double else ONE_KERNEL
    fixed_us, time_ns = 0.0, 0.0
    for length in lengths:
        for fixed, passes, single in parts(length, longest):
            fixed_us += fixed
            share = constants()["single_share" if single else "several_share"]
            time_ns += moved_ns(gpu, size * passes, streams.bandwidth(gpu) * share)
    if dict(signature.detail).get("normalization", "0") != "0":
        fixed_us += constants()["kernel_us"]
        time_ns += moved_ns(gpu, size, streams.bandwidth(gpu))
    floor_ns = 1000.0 * fixed_us * floor_scale(gpu.generation) / floor_scale("ampere-86")
    distance = "own generation" if gpu.generation == "ampere-86" else "borrowed"
    return Price(floor_ns + time_ns, floor_ns, band("fft", distance))


def dimensions(problem: Problem, rank: int) -> list[int]:
    """The dimensions that are transformed, as the signature says; else the last."""
    text = str(dict(problem.signature.detail).get("dim", ""))
    chosen = [int(part) % rank for part in text.strip("[]()").split(",") if part.strip().lstrip("-").isdigit()]
    return chosen or [rank - 1]


def parts(length: int, longest: int) -> list[tuple[float, float, bool]]:
    """(microseconds of latency, passes over the data, whether one kernel does it all) of a transform of this length."""
    if _largest_prime(length) > LARGEST_PRIME:
        padded = 1 << (2 * length - 2).bit_length()
        grown = padded / length
        kernel_us = constants()["kernel_us"]
        return [(us, passes * grown, single) for us, passes, single in 2 * parts(padded, longest)] + [
            (3 * kernel_us, 3 * grown, False)
        ]
    kernels = max(1, ceil(log2(max(length, 2)) / log2(longest)))
    points = length ** (1.0 / kernels)
    latency = kernels * (constants()["kernel_us"] + constants()["point_us"] * points)
    return [(latency, float(kernels), kernels == 1)]


@cache
def _largest_prime(number: int) -> int:
    largest, divisor = 1, 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            largest, number = divisor, number // divisor
        divisor += 1
    return max(largest, number)
