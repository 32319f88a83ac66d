"""Operators that CUDA has kernels for and the CPU has none, or not for a type: computed with what the CPU does have.

- Products whose result has another type than their factors, `torch.mm(a, b, out_dtype=torch.float32)` and its kin:
  half precision factors, a float32 sum that is never rounded (`_mm_dtype_out_cuda` and its kin of
  aten/src/ATen/native/cuda/Blas.cpp).
- `histc` of integers (aten/src/ATen/native/cuda/SummaryOps.cu).
"""

from __future__ import annotations

from typing import Any

import torch

from understudy.seam.torch.dispatch.mode import Dispatch
from understudy.seam.torch.dispatch.moves import fetch
from understudy.seam.torch.kernels.substitutes import Kernel, substituted
from understudy.seam.torch.operators.halves import HALVES
from understudy.seam.torch.operators.plan import Plan
from understudy.seam.torch.tags import device_of

Tensor = torch.Tensor
aten = torch.ops.aten
SAME_FACTORS = "input dtypes must be the same"
OTHER_OUT = "out_dtype must be the same as the dtype of the provided out tensor"
OUT_DTYPES = "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs"
OTHER_SELF = "self dtype must match either out_dtype or {} dtype"
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
OVERLOADS = ("dtype", "dtype_out")


class WithDtype(Kernel):
    """A product of two tensors whose result has the dtype that is asked for, perhaps added to another tensor."""

    def __call__(self, *args: Any, out: Tensor | None = None, **scales: Any) -> Any:
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
        made = self._overloadpacket(*(tensor.to(dtype) for tensor in tensors), **scales)
        return made if out is None else out.resize_(made.shape).copy_(made)


class OfIntegers(Kernel):
    """`histc` of integers, counted in float64, where each is exact."""

    def __call__(self, tensor: Tensor, *args: Any, out: Tensor | None = None, **kwargs: Any) -> Any:
        counts = aten.histc.default(tensor.double(), *args, **kwargs).to(tensor.dtype)
        return counts if out is None else out.resize_(counts.shape).copy_(counts)


def _kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func._opname != "histc":
        return WithDtype(func)
    tensor = args[0]
    return func if tensor.is_floating_point() or tensor.is_meta else OfIntegers(func)


PRODUCT_NAMES = [f"aten::{name}.{overload}" for name in PRODUCTS for overload in OVERLOADS]
_HANDLERS, VALUES = substituted(("aten::histc", *PRODUCT_NAMES), _kernel)


def histc(dispatch: Dispatch, plan: Plan, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """aten::histc, which waits for the least and the greatest value where it is given no bounds."""
    given = {**dict(zip(plan.names, args, strict=False)), **kwargs}
    tensor = given["self"]
    if device_of(tensor) >= 0 and tensor.numel() and given.get("min", 0) == given.get("max", 0):
        for _ in ("min", "max"):
            fetch(dispatch.state, tensor, plan.name, 1)
    return _HANDLERS["aten::histc"](dispatch, plan, func, args, kwargs)


HANDLERS = {**_HANDLERS, "aten::histc": histc}
"""Operators that `Dispatch` hands on whole; `VALUES` computes them in a replay."""
