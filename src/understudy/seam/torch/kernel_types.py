"""Dtypes for which the CPU has a kernel and CUDA has none: refused with CUDA's text.

The names and dtypes are those of the AT_DISPATCH macros in aten/src/ATen/native/cuda/Blas.cpp (products),
DilatedMaxPool2d.cu, DilatedMaxPool3d.cu, AveragePool2d.cu, AveragePool3d.cu, UpSampleBilinear2d.cu and
UpSampleBicubic2d.cu.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from understudy.seam.torch.operators import Plan, tensors_in
from understudy.seam.torch.type_names import scalar_type

REAL = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
FLOATING = REAL | {torch.complex64, torch.complex128}
KERNELS = {
    "aten::mm": ("addmm_cuda", FLOATING),
    "aten::addmm": ("addmm_cuda", FLOATING),
    "aten::bmm": ("baddbmm_cuda", FLOATING),
    "aten::baddbmm": ("baddbmm_cuda", FLOATING),
    "aten::addbmm": ("addmm_cuda", FLOATING),
    "aten::mv": ("addmv_impl_cuda", FLOATING),
    "aten::addmv": ("addmv_impl_cuda", FLOATING),
    "aten::dot": ("dot", FLOATING),
    "aten::vdot": ("dot", FLOATING),
    "aten::max_pool2d_with_indices": ("max_pool2d_with_indices_out_cuda_frame", REAL),
    "aten::max_pool3d_with_indices": ("max_pool3d_with_indices_out_frame", REAL),
    "aten::avg_pool2d": ("avg_pool2d_out_cuda_frame", REAL),
    "aten::avg_pool3d": ("avg_pool3d_out_cuda", REAL),
    "aten::upsample_bilinear2d": ("upsample_bilinear2d_out_frame", REAL),
    "aten::upsample_bicubic2d": ("upsample_bicubic2d_out_frame", REAL),
}
"""What the kernel calls itself, and the dtypes that it takes."""


def check(plan: Plan, args: tuple[Any, ...]) -> None:
    """Raise what PyTorch raises where a CUDA kernel does not take its operands' dtype."""
    kernel, dtypes = KERNELS[plan.name]
    for tensor in tensors_in(args):
        if tensor.layout is torch.strided and tensor.dtype not in dtypes:
            raise _error()(f"\"{kernel}\" not implemented for '{scalar_type(tensor.dtype)}'")


@cache
def _error() -> type[RuntimeError]:
    """The class of that error in this version of PyTorch, of which some newer ones have a subclass."""
    with torch._C._DisableTorchDispatch():
        try:
            torch._C._VariableFunctions.abs(torch.zeros(1, dtype=torch.bool, device="cpu"))
        except RuntimeError as error:
            return type(error)
    return RuntimeError
