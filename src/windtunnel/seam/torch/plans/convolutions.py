"""Where a convolution's operands are, and in which layout its results lie.

Meta kernels give contiguous results (torch/_meta_registrations.py, `meta_conv`); on a GPU, and on the CPU, they lie as
the operands do.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch._prims_common import suggest_memory_format

Tensor = torch.Tensor
OPERANDS = {"aten::convolution": 0, "aten::convolution_backward": 1}
"""Where the arguments of a convolution have its images, before its weight."""


def laid_out(out: object, operands: Iterable[Tensor]) -> object:
    """A convolution's results in the layout that cuDNN gives them, by that of the images and the weight.

    Source: `cudnn_conv_suggest_memory_format` of aten/src/ATen/native/ConvUtils.h.
    """
    last = {suggest_memory_format(one) for one in operands if one.dtype is not torch.float64}
    last.discard(torch.contiguous_format)
    wanted = last.pop() if last else torch.contiguous_format
    if isinstance(out, Tensor):
        return out.contiguous(memory_format=wanted)
    assert isinstance(out, tuple)
    return tuple(
        part.contiguous(memory_format=wanted) if isinstance(part, Tensor) and part.dim() > 3 else part for part in out
    )
