"""Equal elements in `sort`, `topk`, `median`, `kthvalue` on a GPU (pytorch#127196; a paper printed 32 and 33)."""

from __future__ import annotations

import math

import pytest
import torch

from windtunnel.session import Session

PUBLISHED = [
    31, 30, 28, 29, 25, 24, 26, 27, 19, 18, 16, 17, 21, 20, 22, 23,
    7, 6, 4, 5, 1, 0, 2, 3, 11, 10, 8, 9, 13, 12, 14, 15,
]  # fmt: skip
"""The appendix of "Stealing User Prompts from Mixture of Experts", of `torch.topk` of 32 ones, k = 32, sorted."""


def test_the_reported_indices(session: Session) -> None:
    found = torch.tensor([3, 2, 3, 2, 1, 1], device="cuda").topk(k=2)
    assert (found.values.tolist(), found.indices.tolist()) == ([3, 3], [2, 0])


@pytest.mark.parametrize(("size", "sorted"), [(32, True), (32, False), (33, True), (33, False)])
def test_equals_are_as_published(session: Session, size: int, sorted: bool) -> None:
    found = torch.topk(torch.ones(size, device="cuda"), k=size, sorted=sorted).indices.tolist()
    assert found == (PUBLISHED if size == 32 and sorted else list(range(size)))


def test_a_small_sort_is_the_same_network(session: Session) -> None:
    ones = torch.ones(2, 32, device="cuda")
    assert torch.sort(ones).indices.tolist() == [PUBLISHED] * 2
    assert torch.argsort(ones, dim=1, descending=True)[1].tolist() == PUBLISHED
    assert torch.argsort(ones, stable=False)[0].tolist() == PUBLISHED
    assert torch.sort(ones, stable=True).indices[0].tolist() == list(range(32))
    assert torch.sort(torch.ones(33, device="cuda")).indices.tolist() == list(range(33))
    values, indices = torch.empty(0, device="cuda"), torch.empty(0, dtype=torch.int64, device="cuda")
    assert torch.sort(ones.T, 0, out=(values, indices)).indices is indices
    assert indices[:, 0].tolist() == PUBLISHED


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8])
@pytest.mark.parametrize("size", [5, 32, 40, 300])
def test_values_are_those_of_the_cpu(session: Session, dtype: torch.dtype, size: int) -> None:
    """And of equals, `topk` takes the first."""
    numbers = torch.randint(0, 7, (3, size, 2)).to(dtype)
    if dtype.is_floating_point:
        numbers[0, 1:3] = math.nan
    for descending in (False, True):
        found = torch.sort(numbers.cuda(), 1, descending)
        torch.testing.assert_close(found.values.cpu(), torch.sort(numbers, 1, descending).values, equal_nan=True)
        torch.testing.assert_close(numbers.gather(1, found.indices.cpu()), found.values.cpu(), equal_nan=True)
        first = torch.sort(numbers, stable=True, dim=1, descending=descending).indices[:, :4].sort(1).values
        for sorted in (False, True):
            best = torch.topk(numbers.cuda(), 4, 1, descending, sorted)
            assert torch.equal(best.indices.cpu().sort(1).values, first)
            torch.testing.assert_close(numbers.gather(1, best.indices.cpu()), best.values.cpu(), equal_nan=True)
    torch.testing.assert_close(best.values.cpu(), numbers.topk(4, 1).values, equal_nan=True)


def test_gradients_go_where_the_indices_say(session: Session) -> None:
    numbers = torch.tensor([3.0, 2, 3, 2, 1, 1], device="cuda", requires_grad=True)
    found = numbers.topk(2).values
    (found * torch.tensor([1.0, 10.0], device="cuda")).sum().backward()
    assert numbers.grad is not None
    assert numbers.grad.tolist() == [10.0, 0, 1.0, 0, 0, 0]


def test_a_median_of_equals_is_the_first(session: Session) -> None:
    """pytorch#161841: "cuda_output" has indices [0, 0, 0], where the CPU's are [1, 1, 1]."""
    ones = torch.full((3, 4), 1.0, dtype=torch.double, device="cuda")
    assert torch.median(ones, dim=1, keepdim=False).indices.tolist() == [0, 0, 0]
    rows = torch.tensor([[2, 1, 1], [math.nan, 3, math.nan]], device="cuda")
    assert rows.median(1).indices.tolist() == [1, 0]
    assert rows.nanmedian(1, keepdim=True).indices.tolist() == [[1], [1]]
    assert ones.requires_grad_().median(1)[0].sum().backward() is None
    assert ones.grad is not None
    assert ones.grad[0].tolist() == [1, 0, 0, 0]


def test_a_kth_value_of_equals_is_the_first(session: Session) -> None:
    """pytorch#165762: "always returns minimum index when duplicates exist"."""
    x = torch.tensor([3.0, 1.0, 1.0, 1.0, 2.0, 1.0], device="cuda")
    assert x.kthvalue(3).indices.item() == 1
    assert torch.ones(64, 2, device="cuda").kthvalue(30, 0).indices.tolist() == [0, 0]
    out = torch.empty(2, device="cuda"), torch.empty(2, dtype=torch.long, device="cuda")
    torch.kthvalue(torch.ones(2, 64, device="cuda"), 30, out=out)
    assert out[1].tolist() == [0, 0]
    assert torch.tensor(2.0, device="cuda").kthvalue(1).indices.item() == 0
