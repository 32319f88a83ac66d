"""Products and convolutions of half precision: summed in float32 and rounded once, as tensor cores do.

A CPU without instructions for it takes many times as long for a product in float16 as in float32, and rounds on the
way. Source of the accumulation: NVIDIA's documentation of cuBLAS, `CUBLAS_COMPUTE_32F`, which PyTorch asks for
(aten/src/ATen/cuda/CUDABlas.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from understudy.seam.torch.operators import thin_convolution
from understudy.seam.torch.operators.halves import HALVES, narrow, wide

Tensor = torch.Tensor
aten = torch.ops.aten


def in_float32(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, with tensors of one half precision type made float32 before, and its results half again after."""

    def run(*args: Any, **kwargs: Any) -> Any:
        first = args[0]
        dtype = first.dtype
        if dtype not in HALVES or first.is_meta:
            return kernel(*args, **kwargs)
        tensors = [value for value in args if isinstance(value, Tensor)]
        if any(tensor.dtype is not dtype for tensor in tensors):  # PyTorch's own error
            return kernel(*args, **kwargs)
        return narrow(kernel(*map(wide, args), **kwargs), dtype)

    return run


KERNELS: dict[str, Callable[..., Any]] = {
    "aten::mm": aten.mm.default._op,
    "aten::addmm": aten.addmm.default._op,
    "aten::bmm": aten.bmm.default._op,
    "aten::baddbmm": aten.baddbmm.default._op,
    "aten::convolution": thin_convolution.convolution,
    "aten::convolution_backward": aten.convolution_backward.default._op,
}
RUN = {name: in_float32(kernel) for name, kernel in KERNELS.items()}
"""By name, what `Plan.run` calls instead of PyTorch's own kernel."""
