"""The sum of two sparse tensors (COO): CUDA puts their entries side by side, where the CPU merges equal indices.

So gradients that are accumulated keep every entry until there are more of them than elements. Source:
`add_out_sparse_cuda` in aten/src/ATen/native/sparse/cuda/SparseCUDATensorMath.cu.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from windtunnel.seam.torch.kernels.nested_dense import part_by_part
from windtunnel.seam.torch.kernels.scaled_sums import scaled

aten = torch.ops.aten
Tensor = torch.Tensor


def side_by_side(kernel: Callable[..., Tensor], *, in_place: bool) -> Callable[..., Tensor]:
    """The kernel, with CUDA's sum where both summands are sparse and have entries."""

    def run(self: Tensor, other: object, *, alpha: complex = 1) -> Tensor:
        if self.layout is torch.strided or not isinstance(other, Tensor) or not _alike(self, other, alpha):
            return kernel(self, other, alpha=alpha)
        added = other._values() if alpha == 1 else other._values() * alpha
        values = torch.cat([self._values(), added])
        made: Tensor = aten._sparse_coo_tensor_unsafe(
            torch.cat([self._indices(), other._indices()], 1), values, self.shape
        )
        if made._nnz() > made.numel():
            made = made.coalesce()
        return self.copy_(made) if in_place else made

    return run


def _alike(self: Tensor, other: Tensor, alpha: complex) -> bool:
    """Whether two tensors are sparse, of one shape and type, with the same sparse dimensions and entries in both.

    Others are left to PyTorch's kernel, which converts or refuses them.
    """
    return (
        self.layout is torch.sparse_coo is other.layout
        and self.shape == other.shape
        and self.dtype is other.dtype
        and self.sparse_dim() == other.sparse_dim()
        and (alpha == 1 or self.is_floating_point() or self.is_complex())
        and min(self._nnz(), other._nnz()) > 0
    )


LAYOUTS = {
    "aten::add.Tensor": part_by_part(side_by_side(scaled(aten.add.Tensor._op, in_place=False), in_place=False)),
    "aten::add_.Tensor": side_by_side(scaled(aten.add_.Tensor._op, in_place=True), in_place=True),
}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
