"""`linalg.eig`: CUDA's eigenvectors lie in rows, the CPU's in columns.

MAGMA computes them on the host, in columns, and they are copied into a tensor that PyTorch allocates in rows. Source:
`linalg_eig_out_info` (`vectors_tmp_needed`) in aten/src/ATen/native/BatchLinearAlgebra.cpp.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor
stock = torch.ops.aten.linalg_eig.default._op


def eig(input: Tensor) -> tuple[Tensor, Tensor]:
    """aten::linalg_eig: eigenvalues, and eigenvectors in rows."""
    values, vectors = stock(input)
    return values, vectors.contiguous()


RUN = {"aten::linalg_eig": eig}
"""By name, what `Plan.run` calls instead of PyTorch's own kernel."""
