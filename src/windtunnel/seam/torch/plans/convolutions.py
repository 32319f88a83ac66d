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
    last = {suggest_memory_format(_plane(one)) for one in operands if one.dtype is not torch.float64}
    last.discard(torch.contiguous_format)
    return last.pop() if last else torch.contiguous_format


def laid_out(out: object, operands: Iterable[Tensor]) -> object:
    """A convolution's results in that layout."""
    wanted = layout_of(operands)
    if isinstance(out, Tensor):
        return lying(out, wanted)
    assert isinstance(out, tuple)
    return tuple(lying(part, wanted) if isinstance(part, Tensor) and part.dim() > 2 else part for part in out)


def lying(tensor: Tensor, wanted: torch.memory_format) -> Tensor:
    """A tensor that lies so: the same one, or a copy."""
    plane = _plane(tensor)
    if plane.is_contiguous(memory_format=wanted):
        return tensor
    copy = plane.contiguous(memory_format=wanted)
    return copy if plane is tensor else copy.squeeze(2)


def _plane(tensor: Tensor) -> Tensor:
    return tensor.unsqueeze(2) if tensor.dim() == 3 else tensor
