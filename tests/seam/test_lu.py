"""LU factors without row exchanges."""

from __future__ import annotations

import pytest
import torch

import windtunnel


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (2, 4, 4), (0, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_the_factors_give_the_matrix_back(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    with windtunnel.emulate():
        matrix = torch.randn(shape, dtype=dtype, device="cuda")
        empty, lower, upper = torch.linalg.lu(matrix, pivot=False)
        assert empty.shape == (0,)
        torch.testing.assert_close(lower @ upper, matrix)
        both, pivots, info = torch.linalg.lu_factor_ex(matrix, pivot=False)
        least = min(shape[-2:])
        assert both.tril(-1)[..., :least].equal(lower.tril(-1))
        assert both.triu()[..., :least, :].equal(upper)
        assert pivots[..., :].eq(torch.arange(1, least + 1, device="cuda")).all()
        assert not info.any()


def test_factors_lie_column_by_column_as_with_pivots() -> None:
    with windtunnel.emulate("V100"):
        for shape in ((3, 5), (2, 5, 3)):
            matrix = torch.rand(shape, device="cuda")
            plain, pivoted = (torch.linalg.lu_factor(matrix, pivot=pivot)[0] for pivot in (False, True))
            assert plain.stride() == pivoted.stride()


def test_a_zero_pivot_is_named() -> None:
    with windtunnel.emulate():
        matrix = torch.tensor([[1.0, 2.0], [2.0, 4.0]], device="cuda")
        assert torch.linalg.lu_factor_ex(matrix, pivot=False).info.item() == 2
        with pytest.raises(RuntimeError, match=r"U\[2,2\] is zero"):
            torch.linalg.lu_factor(matrix, pivot=False)


def test_gradients_and_rows_exchanged_are_pytorchs() -> None:
    with windtunnel.emulate():
        matrix = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device="cuda", requires_grad=True)
        assert torch.linalg.lu(matrix)[0].tolist() == [[0, 1], [1, 0]]
        torch.linalg.lu(matrix, pivot=False)[2].sum().backward()
        assert matrix.grad is not None
        torch.testing.assert_close(matrix.grad.cpu(), torch.tensor([[7.0, -2.0], [-2.0, 1.0]]))
