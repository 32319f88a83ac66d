"""Convolutions of one channel into one, as in image filters: a sum of shifted pictures.

The CPU's library pads the one channel to a vector of them, and takes twenty times as long (2x2 over 2048x2048: 300 ms
against 14 ms on one core).
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch

from understudy.seam.torch.tags import disable_torch_function

Tensor = torch.Tensor
stock: Any = torch.ops.aten.convolution.default._op
FLOATS = (torch.float32, torch.float64)
MOST_TAPS = 9
LEAST_PIXELS = 1 << 14
"""Below, a picture is done with soon anyway."""


def convolution(
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
