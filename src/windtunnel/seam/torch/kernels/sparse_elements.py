"""The product, element by element, of two sparse tensors: CUDA keeps zeros where the CPU leaves them out.

The CPU walks through two coalesced tensors side by side. CUDA looks up each entry of the one that has fewer in the
other, and keeps those that it does not find, as zeros. Compressed ones are converted and back. Source:
SparseTensorMath.cpp and SparseBinaryOpIntersectionCommon.h (in aten/src/ATen/native/sparse); seen in
pytorch/pytorch#114529.
"""

from __future__ import annotations

import torch

from windtunnel.seam.torch.kernels.nested_dense import part_by_part

aten = torch.ops.aten
Tensor = torch.Tensor
ALIKE = (torch.sparse_coo, torch.sparse_csr)


def product(self: Tensor, other: object) -> Tensor:
    """aten::mul.Tensor."""
    if isinstance(other, Tensor) and self.layout is other.layout in ALIKE and self.shape == other.shape:
        if self.layout is torch.sparse_csr:
            return product(self.to_sparse(), other.to_sparse()).to_sparse_csr()
        if self.is_coalesced() and other.is_coalesced():
            looked_up: Tensor = aten.mul.Tensor._op(_unsorted(self), _unsorted(other))
            return looked_up._coalesced_(True)
    made: Tensor = aten.mul.Tensor._op(self, other)
    return made


def _unsorted(tensor: Tensor) -> Tensor:
    """The same entries, of which the CPU does not know that they are coalesced: so it looks them up as well."""
    made: Tensor = aten._sparse_coo_tensor_unsafe(tensor._indices(), tensor._values(), tensor.shape)
    return made


LAYOUTS = {"aten::mul.Tensor": part_by_part(product)}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
