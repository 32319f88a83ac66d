"""Where a convolution's operands are, and in which layout its results lie.

Meta kernels give contiguous results (torch/_meta_registrations.py, `meta_conv`); on a GPU they lie as the operands do,
and on the CPU those of planes and volumes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch._prims_common import suggest_memory_format

Tensor = torch.Tensor
OPERANDS = {"aten::convolution": 0, "aten::convolution_backward": 1}
"""Where the arguments of a convolution have its images, before its weight."""


def layout_of(operands: Iterable[Tensor]) -> torch.memory_format:
    """The layout in which cuDNN takes images and weight and gives its results; lines count as planes of one row.

    Source: `cudnn_conv_suggest_memory_format` of aten/src/ATen/native/ConvUtils.h.
    """
    planes = (one.unsqueeze(2) if one.dim() == 3 else one for one in operands if one.dtype is not torch.float64)
    last = set(map(suggest_memory_format, planes))
    last.discard(torch.contiguous_format)
    return last.pop() if last else torch.contiguous_format


def laid_out(out: object, operands: Iterable[Tensor]) -> object:
    """A convolution's results in that layout."""
    wanted = layout_of(operands)
    if isinstance(out, Tensor):
        return _lying(out, wanted)
    assert isinstance(out, tuple)
    return tuple(_lying(part, wanted) if isinstance(part, Tensor) and part.dim() > 2 else part for part in out)


def _lying(tensor: Tensor, wanted: torch.memory_format) -> Tensor:
    if tensor.dim() == 3:
        return tensor.unsqueeze(2).contiguous(memory_format=wanted).squeeze(2)
    return tensor.contiguous(memory_format=wanted)
