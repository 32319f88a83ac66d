"""The inverse from a Cholesky factor."""

from __future__ import annotations

import pytest
import torch

import windtunnel


@pytest.mark.parametrize("upper", [False, True])
def test_a_zero_on_the_diagonal_gives_no_error(upper: bool) -> None:
    good = torch.linalg.cholesky(torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=torch.float64))
    bad = torch.tensor([[1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    factors = torch.stack([good, bad])
    if upper:
        factors = factors.mT.contiguous()
    expected = torch.cholesky_inverse(factors[0], upper)
    with pytest.raises(torch.linalg.LinAlgError):
        torch.cholesky_inverse(factors[1], upper)
    with windtunnel.emulate():
        found = torch.cholesky_inverse(factors.cuda(), upper)
        out = torch.empty(0, dtype=torch.float64, device="cuda")
        torch.cholesky_inverse(factors.cuda(), upper, out=out)
        for result in (found, out):
            torch.testing.assert_close(result[0].cpu(), expected)
            assert not result[1].isfinite().all()
