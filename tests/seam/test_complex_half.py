"""complex32 on emulated GPUs, whose kernels compute it in complex64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import windtunnel

Tensor = torch.Tensor
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")


def numbers(dtype: torch.dtype) -> Tensor:
    return torch.complex(torch.tensor([0.5, -1.25, 2.0]), torch.tensor([1.5, 0.25, -0.75])).to(dtype)


@pytest.mark.parametrize(
    "compute",
    [
        torch.sin, torch.acosh, torch.exp, torch.sqrt, torch.sigmoid, torch.angle, torch.sum, torch.prod,
        lambda x: x / (x + 1), lambda x: 2**x, lambda x: x.sum(0, keepdim=True), lambda x: torch.diag(x).trace(),
        lambda x: x.clone().tanh_(), lambda x: torch.lerp(x, x + 1, 0.25), lambda x: x.sum(dtype=torch.complex64),
    ],
)  # fmt: skip
def test_values_are_those_of_complex64_rounded(compute: Callable[[Tensor], Tensor]) -> None:
    wide = compute(numbers(torch.complex64))
    with windtunnel.emulate():
        found = compute(numbers(torch.complex32).cuda())
        assert found.is_cuda
        assert found.dtype in (torch.complex32, torch.float16) or wide.dtype == found.dtype
        assert found.cpu().to(wide.dtype).equal(wide.to(found.dtype).to(wide.dtype))


def test_results_go_where_they_are_asked_for() -> None:
    with windtunnel.emulate():
        x = numbers(torch.complex32).cuda()
        out = torch.empty(3, dtype=torch.complex32, device="cuda")
        assert torch.sin(x, out=out) is out
        assert out.tolist() == x.sin().tolist()
        assert x.nansum().item() == x.sum().item()
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.sin(x, out=torch.empty(3, device="cuda"))
        assert x.to(torch.complex64).sum(dtype=torch.complex32).dtype == torch.complex32


def test_what_cuda_does_not_have_either_is_refused() -> None:
    with windtunnel.emulate(), pytest.raises(RuntimeError, match="not implemented for 'ComplexHalf'"):
        numbers(torch.complex32).cuda().cumsum(0)
