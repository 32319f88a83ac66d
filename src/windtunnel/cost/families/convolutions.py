"""Convolutions as implicit products: forward, gradient of the data and gradient of the weights.

A library gathers the pieces of the input that each product needs while it loads them, so a convolution is a product
whose first operand is larger than the tensor in memory. With a tensor of b x C x H x W ("wide", the input) and one of
b x K x P x Q ("deep", the output), weights of K x C/g x R x S and g groups, each a product of its own:

    forward   (b P Q) x (C/g R S)  by  (C/g R S) x K/g
    data      (b H W) x (K/g R S)  by  (K/g R S) x C/g      strides leave out what they skip
    weights   (C/g R S) x (b P Q)  by  (b P Q) x K/g

A transposed convolution is the same with forward and data exchanged. Times are those of `products`, with the bytes of
the tensors as they lie in memory and with the share of the products' rate that convolutions reach
(`data/curves.toml`, `[[convolution]]`, fitted on ResNet-50), and never less than a large product's. On tensor cores
channels are padded to eight elements (to four where there are no more).

cuDNN leaves the bias to PyTorch, which adds it with a kernel of its own (`streams.bias_ns`).

The 16-bit kernels of tensor cores take channels last (NVIDIA's guide to convolutional layers, "Tensor layouts"): other
layouts are converted by kernels of their own, which read and write both tensors of each product once. With the cuDNN
of CUDA 12 the forward pass is converted only where that is faster: timm's eager results on RTX 3090 and 4090 (torch 2.4
and 2.9) leave no time for more, those of torch 1.12 do. `data/convolutions.toml` has, fitted on timm's results: what
both gradients reach of the forward pass's rate ("backward"), the forward pass of channels first as they are ("channels
first"), and conversions of layout of the bandwidth of additions ("conversion"). Compiled models have channels last:
what their convolutions reach of the rate that the products' constants give is fitted on timm's results of those
("channels last", apart for 1x1 kernels and for groups, narrow and wide).

In FP32, 3x3 kernels of stride 1 have ways of their own (`winograd`).
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from windtunnel.cost import flops
from windtunnel.cost.bands import band
from windtunnel.cost.curves import share_of
from windtunnel.cost.families import direct_convolutions, looped_convolutions, products, streams, winograd
from windtunnel.cost.families.direct_convolutions import fitted_share
from windtunnel.cost.families.problem import Price, Problem
from windtunnel.cost.files import shortest_ns
from windtunnel.operators.classes import classify

CLASSES = ("convolution",)
NO_CONVERSION = (12, 0)
"""From this version of CUDA on the forward pass takes channels first as they are."""
NARROW = (1, 8, 16, 32)
"""Channels of a group for which cuDNN has kernels of channels last that do better than a product of its own for each.

Seen in timm's compiled models: those with 8, 16 and 32 channels a group are fast, one with 24 is not. Depthwise ones
are here where cuDNN has no depthwise kernel for their filter (`direct_convolutions`): focalnet_large_fl3's 9x9.
"""
VOLUMES_OF_FEW = (0.25, 0.31)
"""Shares of the bandwidth and of the FP32 rate that volumes of up to four channels reach, with TF32 allowed or not: an
H200 (`make hardware`) and eight other GPUs (KernelBench level1/59). Between GPUs they differ by a factor of two."""
FEW_CYCLES = (0.65, 0.0165)
"""Cycles of an SM for a result of a plane of few channels in 32 bits, and for each element of its filter: an H200's
filters of 3x3 to 11x11 (`make hardware`)."""
TF32_CONVERSION = (0.9, 12.0)
"""What conversions of layout in 32 bits reach: of the bandwidth of additions, and bytes of an SM in a cycle. An H200's
convolutions with channels first and last, of which 16 differ by both tensors' conversion for each product."""
FIRST_ONLY = frozenset({"kepler", "pascal", "volta", "turing"})
"""Generations whose kernels in FP32 take channels first alone: cuDNN converts both tensors of each product (ResNet-50's
training on a V100, FP32, takes 413 ms with channels last and 342 with channels first, AMP 111 and 152:
github.com/sandeepkumar-skb/pytorch_experiments)."""
TF32_FIRST = 0.28
"""What kernels of channels first reach of the rate of those of channels last in TF32: an H200's long lines."""
TF32_LAST = {"hopper": 0.95, "blackwell": 0.3}
"""What convolutions of channels last in TF32 reach of the products' rate, of generations without such whole models: an
H200's planes, and KernelBench's transposed ones on a B200, whose cuDNN had no kernels of its own for it."""
DATA_TILES = {"hopper": 64}
"""Channels of the narrowest tile of a gradient of the data in TF32: those of fewer take as long (an H200's of 1 and 3;
KernelBench level1/71, of 32, on two H100)."""
DILATED_STRIDES = 0.55
"""What strided transposed convolutions reach in TF32 where they are dilated: KernelBench level1/77 on an A100, L40S."""
TRANSPOSED_FP32 = 0.4
"""What transposed convolutions reach of a gradient's rate without tensor cores: an H200's, KernelBench's on a T4."""
TRANSPOSED_VOLUMES = {"tf32": 0.14}
"""What transposed volumes of stride 1 reach of the others' rate, and where nothing is published: an H200's in TF32 and
KernelBench level1/61."""
OTHER_VOLUMES = 0.36


class Sizes(NamedTuple):
    """Batch, channels and positions of the wide and the deep tensor, groups, positions of the kernel, dimensions."""

    batch: int
    wide: int
    wide_positions: int
    deep: int
    deep_positions: int
    groups: int
    kernel: int
    dims: int
    dilated: bool

    @property
    def is_strided(self) -> bool:
        """Whether the deep tensor has at most half as many positions."""
        return 2 * self.deep_positions <= self.wide_positions


def sizes(problem: Problem) -> tuple[Sizes, tuple[str, ...]] | None:
    """A convolution's sizes and the products it consists of; None where the shapes are not those of one."""
    shapes, signature = problem.inputs, problem.signature
    outputs = signature.shapes[signature.inputs :] if signature.inputs else ()
    transposed = flops.is_set(signature, "transposed") or "transpose" in problem.name
    through = "forward" if transposed else "data"
    if problem.name.endswith("_backward"):
        if len(shapes) < 3:
            return None
        out, x, weight = shapes[:3]
        kinds = tuple(kind for kind, of in ((through, x), ("weights", weight)) if not outputs or of in outputs)
    else:
        if len(shapes) < 2 or not outputs:
            return None
        x, weight, out = shapes[0], shapes[1], outputs[0]
        kinds = ("data" if transposed else "forward",)
    if not len(x) == len(weight) == len(out) or len(x) < 3 or not prod(x) * prod(weight) * prod(out):
        return None
    wide, deep = (out, x) if transposed else (x, out)
    groups = max(1, wide[1] // weight[1])
    dilated = set(direct_convolutions.numbers(dict(signature.detail).get("dilation"))) != {1}
    positions = prod(wide[2:]), deep[1], prod(deep[2:])
    return Sizes(x[0], wide[1], *positions, groups, prod(weight[2:]), len(x) - 2, dilated), kinds


def padded(channels: int, tensor_cores: bool) -> int:
    """Channels as tensor cores take them: whole multiples of eight, or four where there are no more."""
    if not tensor_cores:
        return channels
    return 4 if channels <= 4 else -(-channels // 8) * 8


def product_of(kind: str, of: Sizes, item: int, tensor_cores: bool, skipped: bool = True) -> products.Product:
    """The product that a convolution of this kind is; `skipped` is whether it leaves out what strides skip."""
    wide, deep = padded(of.wide // of.groups, tensor_cores), padded(of.deep // of.groups, tensor_cores)
    outside, inside = of.batch * of.deep_positions, of.batch * of.wide_positions
    if kind == "data":
        left = min(1.0, of.deep_positions / of.wide_positions) if skipped else 1.0
        depth = max(1, round(deep * of.kernel * left))
        return products.Product(of.groups, inside, wide, depth, item, min(1.0, outside * deep / (inside * depth)))
    distinct = min(1.0, of.wide_positions / (of.deep_positions * of.kernel))
    if kind == "forward":
        return products.Product(of.groups, outside, deep, wide * of.kernel, item, distinct)
    return products.Product(of.groups, wide * of.kernel, deep, outside, item, distinct)


def has_ways(of: Sizes, problem: Problem) -> bool:
    """Whether cuDNN has the ways of `winograd` for it: ungrouped 3x3 kernels of stride 1 in FP32."""
    weight = problem.inputs[2 if problem.name.endswith("_backward") else 1]
    return problem.precision == "fp32" and weight[2:] == (3, 3) and of.groups == 1 and not of.is_strided


def price(problem: Problem) -> Price | None:
    """The time of a convolution's products, conversions of layout and bias; None for those that are no products."""
    row = products.row_for(problem.gpu, problem.precision)
    found = sizes(problem)
    if row is None or found is None or direct_convolutions.is_direct(problem) or looped_convolutions.is_looped(problem):
        return None
    of, kinds = found
    gpu = problem.gpu
    reached, fitted = share_of("convolution", problem.precision, gpu.generation)
    floor = shortest_ns(classify(problem.signature.name), gpu.generation)
    if problem.precision == "tf32":
        reached = TF32_LAST.get(gpu.generation, reached)
    part = reached / row[0].scale
    of_ways = has_ways(of, problem)
    few = kinds == ("forward",) and of.wide // of.groups <= direct_convolutions.MOST_CHANNELS
    if few and of.dims == 3:
        total = _few_channels_ns(problem)
    else:
        part *= transposed_share(of, problem)
        kind_ns = _way_ns if of_ways else _kind_ns
        total = sum(kind_ns(kind, of, problem, row[0], part) for kind in kinds)
    if few and of.dims == 2 and of.kernel > 1 and problem.item_bytes == 4:
        total = max(total, _few_results_ns(of, problem))
    last = ("channels_last", 1) in problem.signature.detail
    if last and problem.precision == "fp32" and gpu.generation in FIRST_ONLY:
        total += len(kinds) * _conversion_ns(of, problem)
    total = max(total, floor) + streams.bias_ns(problem)
    if of_ways:
        near = winograd.constants_for(gpu)[2] if kinds == ("forward",) else "borrowed"  # no gradient was timed alone
        return Price(total, floor, band("winograd", near, gpu.key, total / 1000.0), own=near == "own GPU")
    if not direct_convolutions.is_of_networks(problem):
        return Price(total, floor, band(others_family(of, problem.precision), "borrowed", gpu.generation))
    return Price(total, floor, band("convolutions", "own generation" if fitted else "borrowed"), of_steps=True)


def others_family(of: Sizes, precision: str) -> str:
    """The family of bands of a convolution that no timed network has: a library's choice for volumes is less known."""
    return f"convolutions, {'volumes' if of.dims == 3 else 'planes'}{' fp32' if precision == 'fp32' else ''}"


def transposed_share(of: Sizes, problem: Problem) -> float:
    """What transposed convolutions reach of the rate of the gradients that they are."""
    if not flops.is_set(problem.signature, "transposed") or problem.name.endswith("_backward"):
        return 1.0
    if problem.precision == "fp32":
        return TRANSPOSED_FP32
    if of.is_strided:
        return DILATED_STRIDES if of.dilated and skips(of, problem) else 1.0
    return TRANSPOSED_VOLUMES.get(problem.precision, OTHER_VOLUMES) if of.dims == 3 else 1.0


def skips(of: Sizes, problem: Problem) -> bool:
    """Whether a gradient of the data leaves out what strides skip.

    Kernels for tensor cores do not with dilated groups, and in TF32 Hopper's only do in volumes without dilation: an
    H200's times are those of all elements at the rate of others.
    """
    if problem.precision == "tf32" and problem.gpu.generation == "hopper":
        return of.dims == 3 and not of.dilated
    return problem.precision == "fp32" or of.groups == 1 or not of.dilated


def _way_ns(kind: str, of: Sizes, problem: Problem, row: products.ProductFit, part: float) -> float:
    """The time of a 3x3 convolution or of one of its gradients, by the fastest way there is."""
    constants, machine, _ = winograd.constants_for(problem.gpu)
    rows, columns = problem.inputs[0][-2:]
    if kind == "weights":
        plain_ns = _kind_ns(kind, of, problem, row, part)
        work = winograd.Work(of.batch, of.wide, of.deep, rows, columns)
        if of.dilated or not winograd.has_room(work):
            return plain_ns
        return min(plain_ns, 1000.0 * float(winograd.weights_us(work, constants, machine)))
    channels = (of.wide, of.deep) if kind == "forward" else (of.deep, of.wide)
    work = winograd.Work(of.batch, *channels, rows, columns)
    return 1000.0 * min(float(way(work, constants, machine)) for way in winograd.ways_of(work, of.dilated))


def _few_channels_ns(problem: Problem) -> float:
    """The forward pass of volumes with so few channels that tensor cores have nothing to hold."""
    (moved, rate), gpu = VOLUMES_OF_FEW, problem.gpu
    work = flops.count(problem.signature, problem.name, "convolution")
    size = flops.bytes_moved(problem.signature)
    return 1e9 * max(size / (moved * gpu.memory_bandwidth_bytes_per_s), work / (rate * gpu.peak_flops["fp32"]))


def _few_results_ns(of: Sizes, problem: Problem) -> float:
    """The forward pass of planes of few channels, whose results bound it: no tile is full."""
    result, element = FEW_CYCLES
    results = of.batch * of.deep * of.deep_positions
    cycles = result + element * of.kernel * (of.wide // of.groups)
    return problem.gpu.spread_ns(results * cycles)


def _kind_ns(kind: str, of: Sizes, problem: Problem, row: products.ProductFit, part: float) -> float:
    """The time of one product of a convolution, with the conversions of layout around it."""
    tensor_cores = problem.gpu.has_tensor_cores and problem.precision != "fp32"
    takes_last = tensor_cores and (problem.precision != "tf32" or is_converted(of))
    first = takes_last and ("channels_last", 1) not in problem.signature.detail
    product = product_of(kind, of, problem.item_bytes, tensor_cores, skips(of, problem))
    tile = DATA_TILES.get(problem.gpu.generation, 1) if problem.precision == "tf32" and of.groups == 1 else 1
    filled = product._replace(n=max(product.n, tile)) if kind == "data" else product

    shortest_us = products.shortest_us(filled, problem, row)
    spread = kind == "data" and of.is_strided and not problem.name.endswith("_backward")
    thin = of.dims == 2 and not spread

    def length_ns(share: float, slower: float = 1.0) -> float:
        of_both = (products.length_us(one, problem, row, part * share, thin=thin) for one in {product, filled})
        least_us, time_us = max(of_both)
        return 1000.0 * (least_us + max(slower * time_us, shortest_us))

    if problem.precision == "tf32":
        packed = of.groups > 1 and not of.dilated and of.dims < 3 and not problem.name.endswith("_backward")
        slower = 1.0 / fitted_share(last_name(of)) if packed else 1.0
        last = length_ns(fitted_share("backward") if kind != "forward" else 1.0, slower)
        converted = last + (_conversion_ns(of, problem) if first else 0.0)
        return converted if not first or (kind == "data" and of.is_strided) else min(length_ns(TF32_FIRST), converted)
    if kind != "forward":
        return length_ns(fitted_share("backward")) + (_conversion_ns(of, problem) if first else 0.0)
    if not tensor_cores:
        return length_ns(1.0)
    if problem.cuda_version < NO_CONVERSION:
        return length_ns(1.0) + (_conversion_ns(of, problem) if first else 0.0)
    last = length_ns(1.0, 1.0 / fitted_share(last_name(of)))
    if not first:
        return last + _moved_twice_ns(padded_elements(of), problem)
    return min(length_ns(fitted_share("channels first")), last + _conversion_ns(of, problem))


def is_converted(of: Sizes) -> bool:
    """Whether TF32 takes channels last: 1x1 kernels and images of few channels have kernels for channels first."""
    return of.kernel > 1 and of.wide // of.groups > direct_convolutions.MOST_CHANNELS


def last_name(of: Sizes) -> str:
    """The share of the rate above that the forward pass reaches with channels last, by groups and kernel."""
    if of.groups > 1:
        return "narrow groups channels last" if of.wide // of.groups in NARROW else "grouped channels last"
    return "pointwise channels last" if of.kernel == 1 else "channels last"


def padded_elements(of: Sizes) -> int:
    """Elements of the tensors that cuDNN copies for channels last, to channels that are whole multiples of eight.

    cuDNN's release notes, 7.6.3: "auto-padding for NHWC layout". Images of up to four channels have their own kernels.
    """
    tensors = (of.wide, of.wide_positions), (of.deep, of.deep_positions)
    return sum(of.batch * channels * positions for channels, positions in tensors if channels > 4 and channels % 8)


def _conversion_ns(of: Sizes, problem: Problem) -> float:
    """What converting the layout of both tensors takes."""
    return _moved_twice_ns(of.batch * (of.wide * of.wide_positions + of.deep * of.deep_positions), problem)


def _moved_twice_ns(elements: int, problem: Problem) -> float:
    """What reading and writing so many elements takes, in another layout or with other channels."""
    size = 2.0 * problem.item_bytes * elements
    if problem.precision != "tf32":
        return 1e9 * size / (fitted_share("conversion") * streams.bandwidth(problem.gpu))
    gpu, (share, per_clock) = problem.gpu, TF32_CONVERSION
    return 1e9 * size / min(share * streams.bandwidth(gpu), per_clock * 1e6 * gpu.clock_mhz * gpu.sm_count)
