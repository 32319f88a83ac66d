"""Triangular systems whose matrix is sparse by blocks (BSR), which cuSPARSE solves and the CPU's libraries do not.

Source: `triangular_solve_out_sparse_csr` in aten/src/ATen/native/sparse/cuda/SparseBlasImpl.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from math import nan

import torch

from windtunnel.seam.torch.plans.dtypes import FLOATING, refusal
from windtunnel.seam.torch.plans.halves import HALVES

aten = torch.ops.aten
Tensor = torch.Tensor
SOLVED = FLOATING.difference(HALVES)


def of_blocks(kernel: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """The kernel, which takes a matrix of blocks, too; its second result is empty for sparse matrices.

    A matrix without entries has no solution: not a number. Source: the same function.
    """

    def run(self: Tensor, A: Tensor, *options: bool, **out: Tensor) -> tuple[Tensor, Tensor]:  # noqa: N803
        if A.layout is not torch.sparse_bsr:
            return kernel(self, A, *options, **out)
        if self.dtype not in SOLVED and A._nnz() and self.numel():
            raise refusal("block_sparse_triangular_solve_vec", self.dtype)
        solution, matrix = aten.triangular_solve.default(self, A.to_dense(), *options)
        if A._nnz() == 0:
            solution.fill_(nan)
        if out:
            return out["X"].resize_(solution.shape).copy_(solution), out["M"].resize_(0)
        return solution, matrix.new_empty(0)

    return run


RUN = {
    "aten::triangular_solve": of_blocks(aten.triangular_solve.default._op),
    "aten::triangular_solve.X": of_blocks(aten.triangular_solve.X._op),
}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
