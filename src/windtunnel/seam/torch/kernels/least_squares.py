"""`torch.linalg.lstsq`: CUDA has one driver, `gels`, which takes matrices for granted that have full rank.

So it tells no rank, and what has less gives numbers that are none, where the CPU's default driver finds a solution and
its `gels` an error. Sources: `linalg_lstsq_gels` of aten/src/ATen/native/cuda/linalg/BatchLinearAlgebra.cpp, the checks
in aten/src/ATen/native/BatchLinearAlgebra.cpp; report: SimplexLab/TorchJD#142.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten
Tensor = torch.Tensor
Solved = tuple[Tensor, Tensor, Tensor, Tensor]
stock = aten.linalg_lstsq.default._op
OTHER = "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA"


def gels(self: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Solved:
    """aten::linalg_lstsq: by QR, of the matrix or where it has fewer rows than columns of its transpose."""
    if driver not in (None, "gels"):
        raise RuntimeError(OTHER)
    try:
        solved: Solved = stock(self, b, rcond, driver="gels")
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return _deficient(self, b)
    return solved if solved[0].any() or not b.any() else _deficient(self, b)  # LAPACK's solution of zeros


def _deficient(a: Tensor, b: Tensor) -> Solved:
    is_vector = b.dim() < a.dim()
    right = b.unsqueeze(-1) if is_vector else b
    if a.shape[-2] >= a.shape[-1]:
        q, r = torch.linalg.qr(a)
        found = torch.linalg.solve_triangular(r, q.mH @ right, upper=True)
    else:
        q, r = torch.linalg.qr(a.mH)
        found = q @ torch.linalg.solve_triangular(r.mH, right, upper=False)
    beyond = a.shape[-2] > a.shape[-1]
    left = (a @ found - right).abs().square().sum(-2) if beyond else a.real.new_empty(0)
    none = a.real.new_empty(0)
    return found.squeeze(-1) if is_vector else found, left, none.to(torch.int64), none


RUN = {"aten::linalg_lstsq": gels}
"""By name and overload, what `Plan.run` calls instead of PyTorch's own kernel."""
