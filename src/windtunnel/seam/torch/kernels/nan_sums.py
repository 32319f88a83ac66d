"""Sums that leave NaN out: CUDA's kernel takes complex numbers, the CPU's refuses them.

Source: `nansum_out` in aten/src/ATen/native/ReduceOps.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from windtunnel.seam.torch.kernels.complex_half import in_complex64

Tensor = torch.Tensor
aten = torch.ops.aten
nansum_on_cpu = aten.nansum.default._op
sum_of = in_complex64(aten.sum.dim_IntList)


def nansum(
    input: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> object:
    """`nansum` of any type."""
    if not input.is_complex():
        summed: Tensor = nansum_on_cpu(input, dim, keepdim, dtype=dtype)
        return summed
    dims = tuple(range(input.dim())) if dim is None or len(dim) == 0 else tuple(dim)
    return sum_of(torch.where(input.isnan(), 0, input), dims, keepdim, dtype=dtype or input.dtype)


RUN = {"aten::nansum": nansum}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
