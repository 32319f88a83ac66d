"""Depthwise and thin grouped convolutions: kernels of their own, bound by the bytes that they move.

With a few channels a group there is nothing for a tile of a matrix product to hold: cuDNN and PyTorch
(aten/src/ATen/native/cuda/DepthwiseConv2d.cu) take direct kernels, which run on the ordinary cores and neither need
aligned channels nor change layouts. What they reach of the memory's bandwidth is fitted on timm's results of models
with depthwise convolutions on an RTX 3090 (training) and 4090 (inference): `data/convolutions.toml`. The backward pass,
whose gradient of the weights sums over all images, reaches far less. Half of the FP32 rate is assumed.
"""

from __future__ import annotations

from functools import cache

from understudy.cost import flops
from understudy.cost.bands import band
from understudy.cost.families.problem import Price, Problem
from understudy.cost.operators import classify, read

CLASSES = ("convolution",)
MOST_CHANNELS = 4
"""Input channels a group up to which a grouped convolution is a direct one; assumed."""
COMPUTE_SHARE = 0.5
CHANNELS_LAST_SINCE = (12, 0)
"""From this version of CUDA on there are results of compiled models, which have channels last."""
FITTED_ON = ("ampere-86", "ada")
"""Generations of the cards whose results the shares were fitted on."""


@cache
def fitted_share(name: str) -> float:
    """A share of `data/convolutions.toml`."""
    return float(next(row["share"] for row in read("convolutions")["share"] if row["name"] == name))


def is_direct(problem: Problem) -> bool:
    """Whether a convolution has several groups of a few channels each."""
    name, inputs = problem.name, problem.inputs
    if len(inputs) < 2:
        return False
    x, weight = (inputs[1], inputs[2]) if name.endswith("_backward") and len(inputs) > 2 else inputs[:2]
    if len(x) < 3 or len(weight) != len(x) or not weight[1]:
        return False
    if flops.is_set(problem.signature, "transposed"):
        return int(dict(problem.signature.detail).get("groups", 1)) > 1 and weight[1] <= MOST_CHANNELS
    return x[1] > weight[1] and weight[1] <= MOST_CHANNELS


def share_name(problem: Problem) -> str:
    """Which share of the bandwidth it reaches: cuDNN's kernels of channels last are others than PyTorch's of first."""
    if problem.name.endswith("_backward"):
        return "direct backward"
    last = ("channels_last", 1) in problem.signature.detail and problem.cuda_version >= CHANNELS_LAST_SINCE
    return "direct channels last" if last else "direct"


def price(problem: Problem) -> Price | None:
    """The time of a direct convolution; None for all others."""
    if not is_direct(problem):
        return None
    gpu = problem.gpu
    operator = classify(problem.signature.name)
    floor_ns = operator.floor_ns(gpu.generation)
    work = flops.count(problem.signature, problem.name, operator.name)
    compute_ns = 1e9 * work / (COMPUTE_SHARE * gpu.peak_flops["fp32"])
    share = fitted_share(share_name(problem))
    memory_ns = 1e9 * flops.bytes_moved(problem.signature) / (share * gpu.memory_bandwidth_bytes_per_s)
    distance = "own generation" if gpu.generation in FITTED_ON else "borrowed"
    return Price(floor_ns + max(compute_ns, memory_ns), floor_ns, band("direct convolutions", distance))
