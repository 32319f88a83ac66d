"""The inverse from a Cholesky factor with a zero on its diagonal, which the CPU refuses.

CUDA solves for the identity, whatever the factor, and has infinities and NaN there. Source:
`_cholesky_inverse_cusolver_potrs_based` in aten/src/ATen/native/cuda/linalg/BatchLinearAlgebraLib.cpp.
"""

from __future__ import annotations

import torch
from torch._prims_common.wrappers import _maybe_resize_out as resized

aten = torch.ops.aten
Tensor = torch.Tensor
LinAlgError: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]


def inverse(factor: Tensor, upper: bool = False, *, out: Tensor | None = None) -> object:
    """The inverse of the matrix whose Cholesky factor this is, in `out` where that is given."""
    try:
        if out is not None:
            return aten.cholesky_inverse.out(factor, upper, out=out)
        return aten.cholesky_inverse.default(factor, upper)
    except LinAlgError:
        identity = torch.eye(factor.shape[-1], dtype=factor.dtype).expand_as(factor)
        made = torch.cholesky_solve(identity, factor, upper=upper)
        return made if out is None else resized(out, made.shape).copy_(made)


RUN = dict.fromkeys(("aten::cholesky_inverse", "aten::cholesky_inverse.out"), inverse)
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
