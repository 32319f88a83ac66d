"""Integers divided by zero on a GPU, which raises nothing (pytorch/pytorch#89418, #135330, #165650)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from windtunnel.session import Session

Tensor = torch.Tensor
TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
WORD = 4294967295


def truncated(first: Tensor, second: Tensor | int) -> Tensor:
    return torch.div(first, second, rounding_mode="trunc")


@pytest.mark.parametrize("function", [torch.fmod, torch.remainder, truncated])
@pytest.mark.parametrize("dtype", TYPES)
def test_zero_gives_all_ones(session: Session, function: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """The numbers of test_fmod_remainder_by_zero_integral in PyTorch's test/test_binary_ufuncs.py."""
    numbers = torch.tensor([9, 0, 4] if dtype is torch.uint8 else [9, 0, -4], dtype=dtype, device="cuda")
    expected = {torch.uint8: [255] * 3, torch.int64: [WORD, WORD, -1]}.get(dtype, [-1] * 3)
    for zero in (torch.zeros_like(numbers), torch.zeros((), dtype=dtype, device="cuda"), 0):
        assert function(numbers, zero).tolist() == expected


def test_a_floor_is_that_of_the_quotient(session: Session) -> None:
    """c10::div_floor_integer: one less where the signs differ and something is left over."""
    numbers = torch.tensor([7, 0, -7], device="cuda")
    assert torch.floor_divide(numbers, 0).tolist() == [WORD, WORD, -2]
    assert (numbers // torch.zeros_like(numbers)).tolist() == [WORD, WORD, -2]
    assert (numbers.int() // 0).tolist() == [-1, -1, -2]
    assert torch.tensor([1 << 40], device="cuda").floor_divide(0).tolist() == [-1]
    assert torch.floor_divide(torch.tensor(1).cuda(), torch.tensor(0).cuda()).item() == WORD


def test_other_quotients_stay_and_results_are_put_where_they_belong(session: Session) -> None:
    numbers, divisors = torch.tensor([7, 8, -9], device="cuda"), torch.tensor([2, 0, 4], device="cuda")
    assert (numbers // divisors).tolist() == [3, WORD, -3]
    assert (numbers % divisors).tolist() == [1, WORD, 3]
    assert (5 % divisors).tolist() == [1, WORD, 1]
    out = torch.zeros(3, dtype=torch.int64, device="cuda")
    assert torch.remainder(numbers, divisors, out=out) is out
    assert out.tolist() == [1, WORD, 3]
    address = numbers.data_ptr()
    numbers //= divisors
    assert (numbers.tolist(), numbers.data_ptr()) == ([3, WORD, -3], address)
    shorts = torch.tensor([7], dtype=torch.int8, device="cuda")
    assert shorts.remainder_(torch.tensor([0], device="cuda")).tolist() == [-1]


def test_the_cpu_and_floating_point_are_as_ever(session: Session) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.tensor([7]) // 0
    assert torch.tensor([7.0], device="cuda").remainder(0).isnan().item()
    assert torch.div(torch.tensor([7], device="cuda"), 0).isinf().item()
    assert torch.div(torch.tensor([7], device="cuda"), 0.0, rounding_mode="floor").isinf().item()


def test_a_replay_gives_them(session: Session) -> None:
    divisors, graph = torch.ones(2, dtype=torch.int64, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = 7 // divisors
    divisors.copy_(torch.tensor([0, 2]))
    graph.replay()
    assert made.tolist() == [WORD, 3]
