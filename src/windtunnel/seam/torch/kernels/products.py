"""Products of matrices: half precision, results of another type than their factors, and what cuBLASLt takes.

- Half precision is summed in float32 and rounded once, as tensor cores do. A CPU without instructions for it takes many
  times as long for a product in float16 as in float32, and rounds on the way. Source of the accumulation: NVIDIA's
  documentation of cuBLAS, `CUBLAS_COMPUTE_32F`, which PyTorch asks for (aten/src/ATen/cuda/CUDABlas.cpp).
- `torch.mm(a, b, out_dtype=torch.float32)` and its kin, for which the CPU has no kernel: half precision factors, a
  float32 sum that is never rounded (`_mm_dtype_out_cuda` and its kin of aten/src/ATen/native/cuda/Blas.cpp).
- `torch._addmm_activation` with `use_gelu` takes GELU's approximation by tanh, which is that of cuBLASLt's epilogue
  (`addmm_out_cuda_impl` of the same file); the CPU takes the exact one.
- The CPU multiplies integers; CUDA refuses them (the AT_DISPATCH macros of the same file).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common.wrappers import _maybe_resize_out as resized

from windtunnel.seam.torch.kernels.substitutes import SubstituteKernel, substituted
from windtunnel.seam.torch.plans.arguments import Arguments, Keywords, OpOverload, Result
from windtunnel.seam.torch.plans.dtypes import FLOATING
from windtunnel.seam.torch.plans.halves import HALVES, in_float32
from windtunnel.seam.torch.plans.layout import is_copied
from windtunnel.seam.torch.scratch.cublaslt import LT_UNIFIED, addmm
from windtunnel.seam.torch.scratch.need import NOTHING, Demand, Need, Row, size_of
from windtunnel.seam.torch.tags import VERSION

Tensor = torch.Tensor
aten = torch.ops.aten
SAME_FACTORS = "input dtypes must be the same"
OTHER_OUT = "out_dtype must be the same as the dtype of the provided out tensor"
OUT_DTYPES = "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs"
OTHER_SELF = "self dtype must match either out_dtype or {} dtype"
BLAS = "aten/src/ATen/native/cuda/Blas.cpp (prepare_matrix_for_cublas); BERT's peaks in huggingface/transformers#28802"
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
OVERLOADS = ("dtype", "dtype_out")


class WithDtype(SubstituteKernel):
    """A product of two tensors whose result has the dtype that is asked for, perhaps added to another tensor."""

    def __call__(self, *args: Any, out: Tensor | None = None, **scales: object) -> object:
        *tensors, dtype = args
        first, second = tensors[-2:]
        if first.dtype != second.dtype:
            raise RuntimeError(SAME_FACTORS)
        if out is not None and out.dtype != dtype:
            raise RuntimeError(OTHER_OUT)
        if dtype != first.dtype and not (dtype is torch.float32 and first.dtype in HALVES):
            raise RuntimeError(OUT_DTYPES)
        if len(tensors) == 3 and tensors[0].dtype not in (dtype, first.dtype):
            raise RuntimeError(OTHER_SELF.format("batch1" if first.dim() == 3 else "mat1"))
        made = self.func._overloadpacket(*(tensor.to(dtype) for tensor in tensors), **scales)
        return made if out is None else out.resize_(made.shape).copy_(made)


def activated(bias: Tensor, *factors: Tensor, use_gelu: bool = False, **scales: object) -> object:
    """`torch._addmm_activation`."""
    made: Tensor = aten.addmm.default(bias, *factors, **scales)
    return aten.gelu.default(made, approximate="tanh") if use_gelu else made.relu()


def activated_into(*tensors: Tensor, out: Tensor, **options: object) -> object:
    """The same with `out`."""
    made = activated_in_float32(*tensors, **options)
    assert isinstance(made, Tensor)
    return resized(out, made.shape).copy_(made)


activated_in_float32 = in_float32(activated)


def copied_factors(call: Demand) -> Need:
    """Copies of the factors that cuBLAS cannot take as they lie."""
    return Need(tuple(size_of(one) for one in call.inputs[-2:] if one.dim() > 1 and is_copied(one)))


def added(call: Demand) -> Need:
    """The same, and cuBLASLt's workspace where each call takes its own."""
    copies, space = copied_factors(call), addmm(call) if VERSION < LT_UNIFIED else NOTHING
    return copies if space.kept and copies.sizes else Need((*space.sizes, *copies.sizes), kept=space.kept)


def _kernel(func: OpOverload, args: Arguments, kwargs: Keywords) -> Result:
    return WithDtype(func)


HANDLERS, VALUES = substituted([f"aten::{name}.{overload}" for name in PRODUCTS for overload in OVERLOADS], _kernel)
"""Operators with handlers of their own, and what computes them in a replay."""
RUN = {
    "aten::mm": in_float32(aten.mm.default._op),
    "aten::addmm": in_float32(aten.addmm.default._op),
    "aten::bmm": in_float32(aten.bmm.default._op),
    "aten::baddbmm": in_float32(aten.baddbmm.default._op),
    "aten::_addmm_activation": activated_in_float32,
    "aten::_addmm_activation.out": activated_into,
}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
DTYPES = {
    "aten::mm": ("addmm_cuda", FLOATING),
    "aten::addmm": ("addmm_cuda", FLOATING),
    "aten::bmm": ("baddbmm_cuda", FLOATING),
    "aten::baddbmm": ("baddbmm_cuda", FLOATING),
    "aten::addbmm": ("addmm_cuda", FLOATING),
    "aten::mv": ("addmv_impl_cuda", FLOATING),
    "aten::addmv": ("addmv_impl_cuda", FLOATING),
    "aten::dot": ("dot", FLOATING),
    "aten::vdot": ("dot", FLOATING),
}
SCRATCH = (
    Row(("mm", "bmm", "baddbmm"), copied_factors, BLAS, copies=True),
    Row(("addmm", "_addmm_activation"), added,
        f"{BLAS}; aten/src/ATen/cuda/CUDABlas.cpp (gemm_and_bias); recorded: JasperSolt/EoR_NN",
        copies=VERSION >= LT_UNIFIED),
)  # fmt: skip
"""Operators' names without namespace and without the underscore of an in-place form."""
