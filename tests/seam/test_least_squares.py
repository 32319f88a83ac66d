"""`torch.linalg.lstsq` on a GPU: its one driver takes full rank for granted, the CPU's default one finds the rank."""

from __future__ import annotations

import pytest
import torch

from windtunnel.session import Session

TALL = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]])


@pytest.mark.parametrize(
    ("matrix", "right"),
    [(TALL, torch.ones(3, 2)), (TALL, torch.ones(3)), (TALL.mT, torch.ones(2, 1)), (TALL.cdouble(), torch.ones(3, 1))],
)
def test_the_answer_is_that_of_gels(session: Session, matrix: torch.Tensor, right: torch.Tensor) -> None:
    matrix = matrix[None] if right.dim() == 1 else matrix
    right = right[None].to(matrix.dtype) if right.dim() == 1 else right.to(matrix.dtype)
    expected = torch.linalg.lstsq(matrix, right, driver="gels")
    found = torch.linalg.lstsq(matrix.cuda(), right.cuda())
    for one, other in zip(found, expected, strict=True):
        assert one.is_cuda
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        torch.testing.assert_close(one.cpu(), other)
    assert found.rank.numel() == 0 < torch.linalg.lstsq(matrix, right).rank.numel()


def test_a_matrix_without_full_rank_gives_no_numbers(session: Session) -> None:
    """SimplexLab/TorchJD#142: zeros on the CPU, and tensor([nan, inf]) on a GPU."""
    zeros, ones = torch.zeros(2, 2), torch.ones(2)
    assert torch.linalg.lstsq(zeros, ones).solution.tolist() == [0.0, 0.0]
    assert not torch.linalg.lstsq(zeros.cuda(), ones.cuda()).solution.isfinite().any()
    wide = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]], device="cuda")
    assert torch.linalg.lstsq(wide, wide[:, :1]).residuals.numel() == 0


def test_gradients_pass_through_it(session: Session) -> None:
    made = [TALL.clone().requires_grad_(), TALL.cuda().requires_grad_()]
    for matrix in made:
        torch.linalg.lstsq(matrix, torch.ones(3, 1, device=matrix.device)).solution.sum().backward()
    assert made[0].grad is not None
    assert made[1].grad is not None
    torch.testing.assert_close(made[1].grad.cpu(), made[0].grad)
