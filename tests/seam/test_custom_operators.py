"""Operators that a program or a library writes in Python: on a device their CUDA kernel runs, and its parts count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import understudy
from understudy.session import Session


@pytest.fixture(autouse=True)
def session() -> Iterator[Session]:
    with understudy.emulate("V100") as session:
        yield session


def test_the_parts_of_a_kernel_run_on_the_device(session: Session) -> None:
    @torch.library.custom_op("understudy_tests::sine", mutates_args=())
    def sine(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + torch.zeros(x.shape, device=x.device)

    sine.register_autograd(
        lambda ctx, grad: grad * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    x = torch.zeros(3, device="cuda", requires_grad=True)
    since = len(session.trace)
    y = sine(x)
    assert [row.signature.name for row in session.trace.since(since)] == ["aten::sin", "aten::zeros", "aten::add"]
    y.sum().backward()
    assert x.grad.tolist() == [1, 1, 1]
    assert sine(torch.zeros(2)).is_cpu


def test_a_kernel_for_cuda_alone() -> None:
    @torch.library.custom_op("understudy_tests::increase", mutates_args=("x",), device_types="cuda")
    def increase(x: torch.Tensor) -> None:
        x.add_(1)

    there = torch.zeros(2, device="cuda")
    increase(there)
    assert there.tolist() == [1, 1]
    with pytest.raises(NotImplementedError, match="understudy_tests::increase"):
        increase(torch.zeros(2))


def test_what_a_kernel_returns_is_a_view_where_its_operators_make_one() -> None:
    library = torch.library.Library("understudy_tests", "FRAGMENT")
    library.define("first(Tensor(a) x) -> Tensor(a)")
    library.impl("first", lambda x: x[:1], "CompositeExplicitAutograd")
    x = torch.zeros(3, device="cuda")
    first = torch.ops.understudy_tests.first(x)
    assert first._is_view()
    assert first._base is x
    first.add_(1)
    assert (x.tolist(), x._version) == ([1, 0, 0], 1)
