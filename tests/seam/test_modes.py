"""`torch.mode` of values that occur as often, as CUDA's kernels choose (pytorch/pytorch#90261)."""

from __future__ import annotations

import pytest
import torch

from windtunnel.session import Session

REPORTED = [
    -0.6572, -0.0377, 0.2676, -0.2568, -1.6279, -0.3259, -0.1349, -0.6699, 1.0273, 0.0203, -0.7080, 0.9360, 0.8535,
    0.0132, 1.2920, -0.4414, -0.5073, -0.5352, 0.2313, 0.1196, -0.7681, -0.9087, -0.4175, -0.0583, -1.1299, 1.5000,
    0.0756, 0.4622, -0.5273, 1.7432, -0.8896, 1.7295, -0.7310, -0.7080, -0.0253, 0.7202, 2.2656, 1.2324, 1.0000,
    0.8584, -3.2207, 0.0425, -1.3242, -0.0217, 0.2297, -0.3833, -0.0539, 1.2920, -0.6719, 0.3425, 1.4785, 0.6108,
    0.5913, -1.3027, -1.0791,
]  # fmt: skip


def test_the_reported_value_is_found(session: Session) -> None:
    numbers = torch.tensor([[[REPORTED]]])
    assert torch.mode(numbers, -1).values.item() == pytest.approx(-0.7080)
    found = torch.mode(numbers.cuda(), -1, False)
    assert found.values.shape == (1, 1, 1)
    assert found.values.item() == pytest.approx(1.2920)
    assert found.indices.item() == 47


def test_a_value_that_is_alone_or_the_only_one_stays(session: Session) -> None:
    """Where all occur once, the least; else the last place (the comments of TensorModeKernel.cuh)."""
    assert torch.mode(torch.tensor([3, 1, 2], device="cuda")) == (1, 1)
    assert torch.mode(torch.tensor([4, 2, 4, 3, 4], device="cuda")) == (4, 4)
    rows = torch.tensor([[1, 5, 5], [2, 2, 7], [0, 3, 9]], device="cuda")
    for dim, keepdim in ((0, False), (1, True)):
        expected = torch.mode(rows.cpu(), dim, keepdim)
        out = torch.empty(0, dtype=torch.int64, device="cuda"), torch.empty(0, dtype=torch.int64, device="cuda")
        for found in (torch.mode(rows, dim, keepdim), torch.mode(rows, dim, keepdim, out=out)):
            assert torch.equal(found.values.cpu(), expected.values)
            assert torch.equal(found.indices.cpu(), expected.indices)


def test_many_elements_give_the_least_value_and_its_first_place(session: Session) -> None:
    numbers = torch.tensor([7, 5, 5, 7, 1, *range(10, 2100)], device="cuda")
    assert torch.mode(numbers) == (5, 1)
