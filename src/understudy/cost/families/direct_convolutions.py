"""Depthwise and thin grouped convolutions: kernels of their own, bound by the bytes that they move.

With a few channels a group there is nothing for a tile of a matrix product to hold: cuDNN and PyTorch
(aten/src/ATen/native/cuda/DepthwiseConv2d.cu) take direct kernels, which run on the ordinary cores and neither need
aligned channels nor change layouts. They reach 0.7 of the memory's bandwidth forward and 0.16 in the backward pass,
whose gradient of the weights sums over all images: fitted on timm's results of models with depthwise convolutions on an
RTX 3090 (training) and 4090 (inference). Half of the FP32 rate is assumed.
"""

from __future__ import annotations

from understudy.cost import flops
from understudy.cost.families.problem import Price, Problem
from understudy.cost.operators import classify

CLASSES = ("convolution",)
MOST_CHANNELS = 4
"""Input channels a group up to which a grouped convolution is a direct one; assumed."""
BANDWIDTH_SHARE = 0.7
BACKWARD_SHARE = 0.16
COMPUTE_SHARE = 0.5
BAND = 0.5


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


def price(problem: Problem) -> Price | None:
    """The time of a direct convolution; None for all others."""
    if not is_direct(problem):
        return None
    gpu = problem.gpu
    operator = classify(problem.signature.name)
    floor_ns = operator.floor_ns(gpu.generation)
    work = flops.count(problem.signature, problem.name, operator.name)
    compute_ns = 1e9 * work / (COMPUTE_SHARE * gpu.peak_flops["fp32"])
    share = BACKWARD_SHARE if problem.name.endswith("_backward") else BANDWIDTH_SHARE
    memory_ns = 1e9 * flops.bytes_moved(problem.signature) / (share * gpu.memory_bandwidth_bytes_per_s)
    return Price(floor_ns + max(compute_ns, memory_ns), floor_ns, BAND)
