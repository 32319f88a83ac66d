"""Convolutions that PyTorch computes image by image, with a matrix of columns and a matrix product for each.

Wheels of PyTorch 2.9 and 2.10 for CUDA 12.8 carry cuDNN 9.10, whose 3-d convolutions in 16 bits they do not use where
channels come first (`ConvParams::use_cudnn` in aten/src/ATen/native/Convolution.cpp: "broken on cuDNN 9.8 - 9.14";
pytorch/pytorch#166122, #166643). `slow_conv_dilated3d` (aten/src/ATen/native/cuda/NaiveDilatedConvolution.cu) takes
their place: for each image and group one kernel that writes the columns, one product, and, for a bias, one copy for
each output channel, launched from one loop on the host, which is what most of them wait for. 1x1x1 kernels and
channels last stay with cuDNN; Inductor adds a bias in a kernel of its own.

The loop's launches are timed by two models of timm on an RTX 4090 alone, which differ by the number of their
convolutions: eager and compiled, with the copies and without, they say 3.6 and 3.3 us for a launch of it.
"""

from __future__ import annotations

from math import ceil, prod

from windtunnel.cost import flops
from windtunnel.cost.families import direct_convolutions, products
from windtunnel.cost.families.problem import Price, Problem
from windtunnel.cost.files import shortest_ns
from windtunnel.operators.classes import classify

CLASSES = ("convolution",)
LAUNCH_US = 3.4
"""The host's part of one launch in the loop."""
WITHOUT_CUDNN = (12, 8), (13, 0)
"""Versions of CUDA, without the last, whose wheels carry a cuDNN that is not used."""
CUDNNS = frozenset({("channels_last", 1), ("cudnn", 1)})
"""Details of a convolution that cuDNN runs: of channels last, or of a PyTorch before 2.9."""
BLOCK_WARPS = 32
"""Of the kernel that writes columns: blocks of 1024 threads, one for each position of a channel (vol2col.cuh)."""
STEP_INSTRUCTIONS = 20
"""Of a thread for each element of the kernel: place, comparisons, load and store; counted in vol2col.cuh."""
WARPS_PER_CLOCK = 4
"""Instructions of a warp that an SM issues in a cycle."""
BAND = 0.3
"""Assumed: nothing but two models of timm was published."""


def is_looped(problem: Problem) -> bool:
    """Whether PyTorch runs a convolution without cuDNN."""
    first, last = WITHOUT_CUDNN
    if not first <= problem.cuda_version < last or problem.item_bytes != 2 or not problem.gpu.has_tensor_cores:
        return False
    weight = _weight(problem)
    if len(weight) != 5 or prod(weight[2:]) == 1 or not CUDNNS.isdisjoint(problem.signature.detail):
        return False
    return not direct_convolutions.is_direct(problem)


def price(problem: Problem) -> Price | None:
    """The time of the loop; None for all other convolutions."""
    row = products.row_for(problem.gpu, problem.precision)
    if row is None or not is_looped(problem):
        return None
    backward = problem.name.endswith("_backward")
    x, weight = problem.inputs[1 if backward else 0], _weight(problem)
    out = problem.inputs[0] if backward else problem.signature.shapes[problem.signature.inputs]
    if flops.is_set(problem.signature, "transposed"):
        x, out = out, x
    groups = max(1, x[1] // weight[1])
    positions, taps = prod(out[2:]), prod(weight[2:])
    depth, deep = x[1] // groups * taps, out[1] // groups
    floor_us = shortest_ns(classify("aten::add"), problem.gpu.generation) / 1000.0
    product = products.Product(1, positions, deep, depth, problem.item_bytes)
    least_us, product_us = products.length_us(product, problem, row[0], problem.aligned_share)
    columns_us = floor_us + _columns_us(problem, x[1] // groups * positions, taps)
    copies = deep if not backward and len(problem.inputs) > 2 else 0
    passes = 2 if backward else 1  # the gradients of the images and of the weight
    device_us = passes * (columns_us + least_us + product_us) + copies * floor_us
    host_us = LAUNCH_US * (2 * passes + copies)
    return Price(1000.0 * x[0] * groups * max(host_us, device_us), 1000.0 * floor_us, BAND)


def _weight(problem: Problem) -> tuple[int, ...]:
    at = 2 if problem.name.endswith("_backward") else 1
    return problem.inputs[at] if len(problem.inputs) > at else ()


def _columns_us(problem: Problem, threads: int, taps: int) -> float:
    """What the columns of one image take: blocks are few, so instructions count, not bytes."""
    waves = ceil(threads / (32 * BLOCK_WARPS) / problem.gpu.sm_count)
    return waves * BLOCK_WARPS * taps * STEP_INSTRUCTIONS / (WARPS_PER_CLOCK * problem.gpu.clock_mhz)
