"""What writes into a tensor, and what C++ makes in a backward pass, without data as with data."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import windtunnel

Tensor = torch.Tensor


def refusal(call: Callable[[Tensor, Tensor], object], one: Tensor, other: Tensor) -> str:
    with pytest.raises(RuntimeError) as caught:
        call(one, other)
    return str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["add_", "atan2_", "clamp_max_", "div_", "eq_", "fmod_", "gt_", "heaviside_", "hypot_", "logical_and_", "pow_"],
)
def test_a_result_must_fit_into_what_is_written(name: str) -> None:
    """TensorIterator.cpp's words: the emulation with data has them from PyTorch's own kernels."""
    found = []
    for no_data in (False, True):
        with windtunnel.emulate("V100", no_data=no_data):
            one, other = torch.ones(5, 1, device="cuda"), torch.ones(5, 5, device="cuda")
            found.append(refusal(lambda x, y: getattr(x, name)(y), one, other))
            assert getattr(other, name)(one).shape == (5, 5)
            assert one.shape == (5, 1)
    assert found == ["output with shape [5, 1] doesn't match the broadcast shape [5, 5]"] * 2


@pytest.mark.parametrize("no_data", [False, True])
@pytest.mark.parametrize("name", ["exp_", "sqrt_", "sigmoid_", "div_"])
def test_a_float_does_not_go_into_integers(name: str, no_data: bool) -> None:
    with windtunnel.emulate("V100", no_data=no_data):
        one = torch.ones(3, dtype=torch.int64, device="cuda")
        found = refusal(lambda x, y: getattr(x, name)(*([y] if name == "div_" else [])), one, one)
    assert found == "result type Float can't be cast to the desired output type Long"


@pytest.mark.parametrize("no_data", [False, True])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_zeros_that_formulas_make_lie_where_their_leaf_does(shape: tuple[int, ...], no_data: bool) -> None:
    """derivatives.yaml: the gradients of copysign's sign, of sgn and of a normal's mean are zeros of sizes alone."""
    with windtunnel.emulate("V100", no_data=no_data):
        leaves = [torch.rand(shape, device="cuda", requires_grad=True) for _ in range(3)]
        sign, real, mean = leaves
        (torch.copysign(torch.ones(shape, device="cuda"), sign) + real.sgn() + torch.normal(mean, 1.0)).sum().backward()
        assert {str(leaf.grad.device) for leaf in leaves if leaf.grad is not None} == {"cuda:0"}
        assert all((leaf.grad + leaf).is_cuda for leaf in leaves if leaf.grad is not None)
        torch.optim.SGD(leaves, 0.1, momentum=0.9).step()
