"""Dtypes for which the CPU has a kernel and CUDA has none: refused with CUDA's text.

The operators are those of which PyTorch 2.6's own operator database (`op_db` of
torch/testing/_internal/common_methods_invocations.py) has dtypes for the CPU that it has not for CUDA. The names and
dtypes are those of the AT_DISPATCH macros in aten/src/ATen/native/cuda: DilatedMaxPool2d.cu, DilatedMaxPool3d.cu,
AveragePool2d.cu, AveragePool3d.cu, IGammaKernel.cu, LogAddExpKernel.cu, UnaryComplexKernels.cu, Dropout.cu. Those of
operators that differ in more than their dtypes stand with them in `kernels/`.
"""

from __future__ import annotations

from functools import cache

import torch

from windtunnel.seam.torch.operators.call import Arguments
from windtunnel.seam.torch.operators.plan import tensors_in
from windtunnel.seam.torch.tags import VERSION
from windtunnel.seam.torch.type_names import scalar_type

Dtypes = tuple[str, frozenset[torch.dtype]]
"""What a kernel calls itself, and the dtypes that it takes."""
REAL = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
FLOATING = REAL | {torch.complex64, torch.complex128}
WIDE = frozenset({torch.float32, torch.float64})
INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
COMPLEX = frozenset({torch.complex32, torch.complex64, torch.complex128})
CUDNN = "getCudnnDataTypeFromScalarType()"
"""Says so in words of its own (aten/src/ATen/cudnn/Types.cpp); the CPU convolves integers of 64 bits."""
DTYPES: dict[str, Dtypes] = {
    "aten::max_pool2d_with_indices": ("max_pool2d_with_indices_out_cuda_frame", REAL),
    "aten::max_pool3d_with_indices": ("max_pool3d_with_indices_out_frame", REAL),
    "aten::avg_pool2d": ("avg_pool2d_out_cuda_frame", REAL),
    "aten::avg_pool3d": ("avg_pool3d_out_cuda", REAL),
    "aten::_trilinear": ("baddbmm_cuda", FLOATING),  # sumproduct_pair of native/Linear.cpp multiplies matrices
    "aten::native_dropout": ("fused_dropout", REAL),
    "aten::logaddexp": ("logaddexp_cuda", REAL | COMPLEX if VERSION >= (2, 10) else REAL),
    "aten::igamma": ("igamma_cuda", WIDE),
    "aten::igammac": ("igammac_cuda", WIDE),
    "aten::angle": ("angle_cuda", WIDE | COMPLEX | INTEGERS | {torch.bool}),
}


def check(taken: Dtypes, args: Arguments) -> None:
    """Raise what PyTorch raises where a CUDA kernel does not take its operands' dtype."""
    kernel, dtypes = taken
    for tensor in tensors_in(args):
        if tensor.layout is torch.strided and tensor.dtype not in dtypes:
            if kernel == CUDNN:
                raise RuntimeError(f"{CUDNN} not supported for {scalar_type(tensor.dtype)}")
            raise refusal(kernel, tensor.dtype)


def refusal(kernel: str, dtype: torch.dtype) -> RuntimeError:
    """PyTorch's error where a kernel does not take a dtype."""
    return _error()(f"\"{kernel}\" not implemented for '{scalar_type(dtype)}'")


@cache
def _error() -> type[RuntimeError]:
    """The class of that error in this version of PyTorch, of which some newer ones have a subclass."""
    with torch._C._DisableTorchDispatch():
        try:
            torch._C._VariableFunctions.abs(torch.zeros(1, dtype=torch.bool, device="cpu"))
        except RuntimeError as error:
            return type(error)
    return RuntimeError
