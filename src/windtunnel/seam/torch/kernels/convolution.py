"""Convolutions: the memory that cuDNN takes for them, half precision, and those of one channel into one.

- What cuDNN takes is its own choice and not published: the rows are models, fitted to recorded sizes where there are
  any, and widen the bound on the peak by what they may be off.
- Half precision is summed in float32 and rounded once, as tensor cores do (see `products`).
- Of one channel into one, as in image filters, a convolution is a sum of shifted pictures: the CPU's library pads the
  one channel to a vector of them, and takes twenty times as long (2x2 over 2048x2048: 300 ms against 14 on one core).
- Tensors of several types are refused in the same words as on several devices.
- The CPU convolves integers of 64 bits; cuDNN refuses them (aten/src/ATen/cudnn/Types.cpp).
- Results of lines that lie channels last stay so; the CPU makes them contiguous. What cuDNN's one layout asks to copy
  comes before (`dispatch.layouts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import torch

from windtunnel.seam.torch.plans.convolutions import OPERANDS, laid_out
from windtunnel.seam.torch.plans.dtypes import CUDNN, FLOATING
from windtunnel.seam.torch.plans.halves import in_float32
from windtunnel.seam.torch.scratch.need import NOTHING, Demand, Need, Row, size_of
from windtunnel.seam.torch.tags import device_of, disable_torch_function, is_contiguous
from windtunnel.seam.torch.type_names import tensor_type

Tensor = torch.Tensor
stock = torch.ops.aten.convolution.default._op
FLOAT = 4
"""Bytes."""
WINOGRAD_POINTS = 25
"""Floats that cuDNN's Winograd kernel keeps of each 3 x 3 filter (recorded: JasperSolt/EoR_NN, cuDNN 9, float32)."""
NATIVE = "aten/src/ATen/native/"
FLOATS = (torch.float32, torch.float64)
MOST_TAPS = 9
LEAST_PIXELS = 1 << 14
"""Below, a picture is done with soon anyway."""


def thin(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int],
    transposed: bool, output_padding: list[int], groups: int,
) -> Tensor:  # fmt: skip
    """aten::convolution, below autograd: (batch, channels, *pixels) and (outputs, channels / groups, *kernel)."""
    if weight.numel() <= MOST_TAPS and not transposed and input.numel() >= LEAST_PIXELS:
        kernel, pixels = weight.shape[2:], input.shape[2:]
        sizes = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(pixels, kernel, _each(stride, kernel), _each(padding, kernel),
                                     _each(dilation, kernel), strict=True)
        ]  # fmt: skip
        one = weight.shape[:2] == (1, 1) and input.shape[1] == 1
        if one and min(sizes) > 0 and input.dtype in FLOATS and weight.dtype == input.dtype and not input.is_meta:
            with disable_torch_function():
                return _shifted(input, weight, bias, sizes, stride, padding, dilation)
    out: Tensor = stock(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    return out


def _shifted(
    input: Tensor, weight: Tensor, bias: Tensor | None, sizes: list[int], stride: list[int], padding: list[int],
    dilation: list[int],
) -> Tensor:  # fmt: skip
    kernel = weight.shape[2:]
    steps, gaps, borders = (_each(given, kernel) for given in (stride, dilation, padding))
    if any(borders):
        input = torch.constant_pad_nd(input, [border for border in reversed(borders) for _ in range(2)])
    out: Tensor | None = None
    for tap in product(*map(range, kernel)):
        begins = [place * gap for place, gap in zip(tap, gaps, strict=True)]
        ranges = zip(begins, sizes, steps, strict=True)
        cut = [slice(begin, begin + (size - 1) * step + 1, step) for begin, size, step in ranges]
        picture = input[(slice(None), slice(None), *cut)]
        factor = weight[(0, 0, *tap)]
        out = picture * factor if out is None else out.addcmul_(picture, factor)
    assert out is not None
    return out if bias is None else out.add_(bias)


def _each(given: list[int], kernel: torch.Size) -> list[int]:
    """One number a dimension, where one may stand for all."""
    return list(given) * len(kernel) if len(given) == 1 else list(given)


# ---------------------------------------------------------------------------------------------- memory


def convolution(call: Demand) -> Need:
    """A convolution forward: its filters transformed, or everything in the layout that tensor cores want."""
    images, weight = call.inputs[:2]
    return _convolution(call, images, weight, call.outputs[0], weight.shape[0])


def convolution_backward(call: Demand) -> Need:
    """The larger of the two halves, gradient of the input and of the weight; they run one after the other."""
    grad, images, weight = call.inputs[:3]
    return _convolution(call, images, weight, grad, weight.shape[1])


def _convolution(call: Demand, images: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, made: int) -> Need:
    kernel: Sequence[int] = weight.shape[2:]
    groups = int(call.get("groups", 1))
    if not torch._C._get_cudnn_enabled() or images.dtype == torch.float64 or groups == images.shape[1] > 1:
        return NOTHING
    everything = size_of(images) + size_of(weight) + size_of(result)
    half = images.dtype in (torch.float16, torch.bfloat16)
    lasts = images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
    search = _search(images, weight, result, call) if torch._C._get_cudnn_benchmark() else 0
    if half and call.gpu.has_tensor_cores and not lasts and max(kernel, default=1) > 1:
        return Need((everything,), everything, search, spare=True)
    dense = set(_pair(call, "stride")) == set(_pair(call, "dilation")) == {1}
    if not half and tuple(kernel) == (3, 3) and dense:
        filters = FLOAT * (WINOGRAD_POINTS * weight.shape[0] * weight.shape[1] + made)
        return Need((filters,), 0 if lasts else everything, search, spare=True)
    unsure = 0 if lasts or max(kernel, default=1) == 1 else everything
    return Need((), unsure, search, spare=True)


def _pair(call: Demand, name: str) -> tuple[int, ...]:
    value = call.get(name, 1)
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _search(images: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, call: Demand) -> int:
    """What `cudnn.benchmark` tries at most: the Fourier transforms of input, filters and output, half of them complex.

    Lavin and Gray (arXiv 1509.09308) and Mathieu et al. (arXiv 1312.5851) give the sizes of both families.
    """
    if max(weight.shape[2:], default=1) == 1:
        return size_of(result)
    area = 1
    for size, kernel in zip(images.shape[2:], weight.shape[2:], strict=True):
        area *= 1 << (size + kernel - 2).bit_length()
    planes = images.shape[0] * (images.shape[1] + weight.shape[0]) + weight.shape[0] * weight.shape[1]
    if set(_pair(call, "stride")) != {1}:
        return 2 * (size_of(images) + size_of(result))
    return planes * (area // 2 + 1) * 2 * FLOAT


# ---------------------------------------------------------------------------------------------- layout


def of_one_type(function: Callable[..., object]) -> Callable[..., object]:
    """A convolution, refused where its tensors have several types: the CPU's libraries have other words for that.

    Source: `check_input_same_type_as_parameters` of aten/src/ATen/native/Convolution.cpp, which stands before cuDNN.
    """

    def convolved(input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: object, **kwargs: object) -> object:
        for what, other in (("weight", weight), ("bias", bias)):
            if other is not None and other.dtype != input.dtype:
                ours, theirs = (tensor_type(one.dtype, on_device=True) for one in (input, other))
                raise RuntimeError(f"Input type ({ours}) and {what} type ({theirs}) should be the same")
        return function(input, weight, bias, *args, **kwargs)

    return convolved


def lines_laid_out(function: Callable[..., object], place: int) -> Callable[..., object]:
    """A convolution whose results lie as cuDNN's do also where the images are lines, which the CPU makes contiguous."""

    def convolved(*args: object, **kwargs: object) -> object:
        out = function(*args, **kwargs)
        operands = [one for one in args[place : place + 2] if isinstance(one, Tensor)]
        lines = len(operands) == 2 and operands[0].dim() == 3 and not all(map(is_contiguous, operands))
        return laid_out(out, operands) if lines and device_of(operands[0]) >= 0 else out

    return convolved


RUN = {
    "aten::convolution": lines_laid_out(of_one_type(in_float32(thin)), OPERANDS["aten::convolution"]),
    "aten::convolution_backward": lines_laid_out(
        in_float32(torch.ops.aten.convolution_backward.default._op), OPERANDS["aten::convolution_backward"]
    ),
}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
DTYPES = {"aten::convolution": (CUDNN, FLOATING | {torch.complex32})}
SCRATCH = (
    Row(("convolution", "_convolution", "cudnn_convolution", "cudnn_convolution_transpose"), convolution,
        NATIVE + "cudnn/Conv_v8.cpp (run_conv_plan, generate_and_filter_plans); recorded: JasperSolt/EoR_NN (3 x 3), "
        "HugePandaCoder/octree-nca-groupeq (1 x 1 and depthwise: nothing)", exact=False),
    Row(("convolution_backward",), convolution_backward, NATIVE + "cudnn/Conv_v8.cpp; recorded: JasperSolt/EoR_NN",
        exact=False),
)  # fmt: skip
"""Operators' names without namespace and without the underscore of an in-place form."""
