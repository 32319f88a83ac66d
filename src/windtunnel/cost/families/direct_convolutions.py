"""Depthwise and thin grouped convolutions: kernels of their own, bound by their bytes or by their arithmetic.

With a few channels a group there is nothing for a tile of a matrix product to hold, so direct kernels run on the
ordinary cores, which neither need aligned channels nor change layouts:

- **cuDNN's** for channels last, and for channels first in FP16 where PyTorch expects it to be faster: square 1x1, 3x3
  and 5x5 kernels without dilation, from 32 channels and a width of 7 on, of stride 1 or of many channels
  (`use_cudnn_depthwise` in aten/src/ATen/native/Convolution.cpp). PyTorch adds a bias with a kernel of its own.
- **PyTorch's own** for all others (aten/src/ATen/native/cuda/DepthwiseConv2d.cu): a thread for each result, which loads
  converts and multiplies an element at a time, so that instructions bound it: a multiprocessor takes so many cycles for
  a result and for each element of its filter, whatever the type. It adds the bias too. Square filters of 1, 3 and 5 are
  compiled each, and others (7x7, 3x1) read their sizes. Measured: 17 shapes by `make hardware` on an H100 and an H200.

cuDNN's kernels for channels last in 16 bits are compiled for square filters of 3, 5 and 7 (profiles show the names
`conv2d_c1_k1_nhwc_kernel_specialized<..., 3, ...>`, `5`, `7`). Other filters run as grouped products do
(`..._fprop_implicit_gemm_..._g8_...`): those belong to `convolutions`.

What they reach of the memory's bandwidth and of the FP32 rate is fitted on timm's results of models with depthwise
convolutions on an RTX 3090 (training) and 4090 (inference): `data/convolutions.toml`. The backward pass, whose gradient
of the weights sums over all images, reaches far less; half of the FP32 rate is assumed there.
"""

from __future__ import annotations

from functools import cache
from math import prod

from windtunnel.cost import flops
from windtunnel.cost.bands import band
from windtunnel.cost.families import streams
from windtunnel.cost.families.problem import Price, Problem
from windtunnel.cost.files import read, shortest_ns
from windtunnel.operators.classes import classify

CLASSES = ("convolution",)
MOST_CHANNELS = 4
"""Input channels a group up to which a grouped convolution is a direct one, and a volume is none for tensor cores;
assumed."""
BACKWARD_ARITHMETIC = 0.5
"""Share of the FP32 rate that the backward pass reaches; assumed."""
CUDNN_KERNELS = (1, 3, 5)
PYTORCH_CYCLES = {True: (1.25, 0.137), False: (2.5, 0.131)}
"""Cycles of a multiprocessor for a result and for an element of its filter, where the filter is compiled or not."""
CUDNN_LAST_KERNELS = ((1, 1), (3, 3), (5, 5), (7, 7))
"""Filters that cuDNN has depthwise kernels of channels last for."""
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
    return x[1] > weight[1] and weight[1] <= MOST_CHANNELS and not is_grouped_product(problem, weight)


def is_grouped_product(problem: Problem, weight: tuple[int, ...]) -> bool:
    """Whether a depthwise convolution of channels last has a filter that cuDNN has no depthwise kernel for."""
    last = ("channels_last", 1) in problem.signature.detail and problem.cuda_version >= CHANNELS_LAST_SINCE
    tensor_cores = problem.precision in ("fp16", "bf16") and problem.gpu.has_tensor_cores
    forward = not problem.name.endswith("_backward")
    return last and tensor_cores and forward and len(weight) == 4 and weight[2:] not in CUDNN_LAST_KERNELS


def is_of_networks(problem: Problem) -> bool:
    """Whether it is of a kind that the timed networks consist of: two dimensions, and not transposed.

    Of others only KernelBench's programs tell (`make exam ARGS=--bands`), of depthwise ones in 32 bits as well.
    """
    return len(problem.inputs[0]) == 4 and not flops.is_set(problem.signature, "transposed")


def is_pytorchs(problem: Problem) -> bool:
    """Whether PyTorch's own kernels run the forward pass, not cuDNN's."""
    x, weight = problem.inputs[:2]
    detail = dict(problem.signature.detail)
    if problem.name.endswith("_backward") or flops.is_set(problem.signature, "transposed") or len(x) < 4:
        return False
    if weight[1] != 1 or detail.get("channels_last"):
        return False
    if len(x) > 4 or problem.signature.dtypes[0] != "float16":
        return True
    stride, dilation = (numbers(detail.get(key)) for key in ("stride", "dilation"))
    channels, width, (high, wide) = x[1], x[3], weight[2:]
    regular = high == wide and dilation == (1, 1) and stride[0] == stride[1]
    if not regular or high not in CUDNN_KERNELS or channels < 32 or width < 7:
        return True
    many = high > 1 and (channels >= 512 or (channels >= 256 and width >= 28))
    return stride[0] != 1 and not (stride[0] == 2 and many)


def numbers(text: str | int | None) -> tuple[int, ...]:
    """A number for each dimension, at least two, as the detail of a signature has them; ones where it does not say."""
    found = [int(number) for number in str(text).strip("[]").split(",")] if text else [1]
    return tuple(found if len(found) > 1 else found * 2)


def share_names(problem: Problem) -> tuple[str, str]:
    """Which shares of the bandwidth and of the FP32 rate cuDNN's kernel reaches, by its layout and direction."""
    if problem.name.endswith("_backward"):
        return "direct backward", ""
    last = ("channels_last", 1) in problem.signature.detail and problem.cuda_version >= CHANNELS_LAST_SINCE
    return "direct channels last" if last else "direct", "arithmetic of cuDNN's"


def price(problem: Problem) -> Price | None:
    """The time of a direct convolution; None for all others."""
    if not is_direct(problem):
        return None
    gpu = problem.gpu
    operator = classify(problem.signature.name)
    floor_ns = shortest_ns(operator, gpu.generation)
    moved = flops.bytes_moved(problem.signature)
    if is_pytorchs(problem):
        total_ns = floor_ns + max(threads_ns(problem), 1e9 * moved / streams.bandwidth(gpu))
    else:
        work = flops.count(problem.signature, problem.name, operator.name)
        bandwidth, arithmetic = share_names(problem)
        rate = (fitted_share(arithmetic) if arithmetic else BACKWARD_ARITHMETIC) * gpu.peak_flops["fp32"]
        memory_ns = 1e9 * moved / (fitted_share(bandwidth) * gpu.memory_bandwidth_bytes_per_s)
        total_ns = floor_ns + max(1e9 * work / rate, memory_ns) + streams.bias_ns(problem)
    distance = "own generation" if gpu.generation in FITTED_ON else "borrowed"
    if not (is_of_networks(problem) and problem.item_bytes == 2):
        return Price(total_ns, floor_ns, band("direct convolutions, others", "borrowed", gpu.generation))
    return Price(total_ns, floor_ns, band("direct convolutions", distance), of_steps=True)


def threads_ns(problem: Problem) -> float:
    """What PyTorch's kernel takes for its results and the elements of their filters."""
    signature, gpu = problem.signature, problem.gpu
    sides = problem.inputs[1][2:]
    result, element = PYTORCH_CYCLES[len(set(sides)) == 1 and sides[0] in CUDNN_KERNELS]
    results = prod(signature.shapes[signature.inputs]) if len(signature.shapes) > signature.inputs else 0
    return gpu.spread_ns(results * (result + element * prod(sides)))
