"""Operators whose kernels for CUDA take other types than the CPU's, or refuse in other words.

- `abs` and `trace` take truths (AbsKernel.cu; `trace_cuda` of TriangularOps.cpp sums a diagonal).
- `native_dropout_backward` scales floating point numbers alone (Dropout.cu).
- `nll_loss_forward` finds its target's type out in a kernel, whose name depends on the sizes (Loss.cu).
- `narrow_copy` is a copy of `narrow`, with its messages (`narrow_copy_dense` of TensorShape.cpp).
"""

from __future__ import annotations

import torch

from windtunnel.seam.torch.kernels.complex_half import in_complex64
from windtunnel.seam.torch.plans.dtypes import REAL, refusal

aten = torch.ops.aten
Tensor = torch.Tensor
TRACE = in_complex64(aten.trace.default)


def absolute(tensor: Tensor) -> object:
    """aten::abs, of truths as well."""
    return tensor.clone() if tensor.dtype is torch.bool else aten.abs.default._op(tensor)


def absolute_into(tensor: Tensor, *, out: Tensor) -> object:
    """The same with `out`."""
    if tensor.dtype is torch.bool:
        return aten.logical_and.out._op(tensor, tensor, out=out)
    return aten.abs.out._op(tensor, out=out)


def narrowed(tensor: Tensor, dim: int, start: int, length: int) -> object:
    """aten::narrow_copy."""
    return aten.narrow.default._op(tensor, dim, start, length).clone(memory_format=torch.contiguous_format)


def traced(matrix: Tensor) -> object:
    """aten::trace, of truths as well."""
    if matrix.dtype is not torch.bool or matrix.dim() != 2:
        return TRACE(matrix)
    return matrix.diagonal().sum()


def negative_log_likelihood(
    tensor: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int, **kwargs: Tensor
) -> object:
    """aten::nll_loss_forward."""
    overload = aten.nll_loss_forward.output if kwargs else aten.nll_loss_forward.default
    try:
        return overload._op(tensor, target, weight, reduction, ignored, **kwargs)
    except RuntimeError as error:
        if not str(error).startswith("expected target dtype to be"):
            raise
    kernel = f"reduce_cuda_kernel_{tensor.dim()}d" if reduction or tensor.dim() == 1 else "no_reduce_cuda_kernel"
    raise refusal(f"nll_loss_forward_{kernel}_index", target.dtype)


def dropped(gradient: Tensor, mask: Tensor, scale: float) -> object:
    """aten::native_dropout_backward."""
    if gradient.dtype not in REAL:
        raise refusal("masked_scale", gradient.dtype)
    return aten.native_dropout_backward.default._op(gradient, mask, scale)


RUN = {
    "aten::native_dropout_backward": dropped,
    "aten::nll_loss_forward": negative_log_likelihood,
    "aten::nll_loss_forward.output": negative_log_likelihood,
    "aten::abs": absolute,
    "aten::abs.out": absolute_into,
    "aten::narrow_copy": narrowed,
    "aten::trace": traced,
}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
