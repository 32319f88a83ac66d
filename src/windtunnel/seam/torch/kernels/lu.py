"""LU factors without row exchanges, which CUDA has and the CPU refuses.

Source: `linalg_lu_factor_ex_out` and `linalg_lu_out` in aten/src/ATen/native/BatchLinearAlgebra.cpp. As in LAPACK, a
column whose pivot is zero is left as it is, and `info` names the first.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._prims_common.wrappers import _maybe_resize_out as resized

Tensor = torch.Tensor
Kernel = Callable[..., object]
aten = torch.ops.aten


def factor_ex(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(factors in one matrix, pivots, info) of matrices [..., m, n]."""
    both = matrix.clone()
    least = min(matrix.shape[-2:])
    for k in range(least):
        pivot = both[..., k, k, None]
        both[..., k + 1 :, k] /= torch.where(pivot == 0, 1, pivot)
        both[..., k + 1 :, k + 1 :] -= both[..., k + 1 :, k, None] * both[..., None, k, k + 1 :]
    zero = both.diagonal(dim1=-2, dim2=-1) == 0
    place = torch.arange(1, least + 1, dtype=torch.int32)
    info = torch.where(zero, place, least + 1).amin(-1) if least else zero.sum(-1)
    return both.mT.contiguous().mT, place.expand(zero.shape).clone(), torch.where(info > least, 0, info).to(torch.int32)


def factors(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(P, which is empty; L; U) of matrices [..., m, n]."""
    both = factor_ex(matrix)[0]
    least = min(matrix.shape[-2:])
    lower = both[..., :least].tril(-1)
    lower.diagonal(dim1=-2, dim2=-1).fill_(1)
    return matrix.new_empty(0), lower, both[..., :least, :].triu()


def _without_pivots(stock: Kernel, compute: Callable[[Tensor], tuple[Tensor, ...]]) -> Kernel:
    def run(matrix: Tensor, *, pivot: bool = True, **others: object) -> object:
        numbers = matrix.is_floating_point() or matrix.is_complex()
        if pivot or matrix.dim() < 2 or matrix.is_meta or not numbers:
            return stock(matrix, pivot=pivot, **others)
        found = compute(matrix)
        outs = [value for value in others.values() if isinstance(value, Tensor)]
        if not outs:
            return found
        return tuple(resized(out, made.shape).copy_(made) for out, made in zip(outs, found, strict=True))

    return run


RUN = {
    f"{packet._qualified_op_name}{overload}": _without_pivots(packet, compute)
    for packet, compute in ((aten.linalg_lu_factor_ex, factor_ex), (aten.linalg_lu, factors))
    for overload in ("", ".out")
}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
