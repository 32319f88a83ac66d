"""Operators that a program or a library writes in Python: on a device their CUDA kernel runs, and its parts count."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import windtunnel
from windtunnel.session import Session


@pytest.fixture(autouse=True)
def session() -> Iterator[Session]:
    with windtunnel.emulate("V100") as session:
        yield session


def test_the_parts_of_a_kernel_run_on_the_device(session: Session) -> None:
    @torch.library.custom_op("windtunnel_tests::sine", mutates_args=())
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


def test_operators_of_torchscript_alone_are_found(session: Session) -> None:
    """PyTorch's counter of operations names one, which Inductor asks for images."""
    for name in ("layout", "is_cuda"):
        vars(torch.ops.prim).pop(name, None)
        assert getattr(torch.ops.prim, name).default


def test_a_kernel_for_cuda_alone() -> None:
    @torch.library.custom_op("windtunnel_tests::increase", mutates_args=("x",), device_types="cuda")
    def increase(x: torch.Tensor) -> None:
        x.add_(1)

    there = torch.zeros(2, device="cuda")
    increase(there)
    assert there.tolist() == [1, 1]
    with pytest.raises(NotImplementedError, match="windtunnel_tests::increase"):
        increase(torch.zeros(2))


def test_what_a_kernel_returns_is_a_view_where_its_operators_make_one() -> None:
    library = torch.library.Library("windtunnel_tests", "FRAGMENT")
    library.define("first(Tensor(a) x) -> Tensor(a)")
    library.impl("first", lambda x: x[:1], "CompositeExplicitAutograd")
    x = torch.zeros(3, device="cuda")
    first = torch.ops.windtunnel_tests.first(x)
    assert first._is_view()
    assert first._base is x
    first.add_(1)
    assert (x.tolist(), x._version) == ([1, 0, 0], 1)


def ten_times(operator: Callable[[torch.Tensor], torch.Tensor], by: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """The operator with a gradient of its own, for an autograd key."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            with torch._C._AutoDispatchBelowAutograd():
                return operator(x)

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return grad * by

    return lambda x: Scaled.apply(x)


def gradient(operator: Callable[[torch.Tensor], torch.Tensor], device: str) -> list[float]:
    x = torch.ones(2, device=device, requires_grad=True)
    operator(x).sum().backward()
    assert x.grad is not None
    return x.grad.tolist()


@pytest.mark.parametrize("of_cpu", ["before", "after", ""])
def test_a_gradient_under_cudas_own_autograd_key_is_that_of_device_tensors(of_cpu: str, session: Session) -> None:
    with torch.library._scoped_library("us_autograd", "DEF") as library:
        library.define("f(Tensor x) -> Tensor")
        library.impl("f", lambda x: x + 1, "CPU")
        library.impl("f", lambda x: x + 2, "CUDA")
        operator = torch.ops.us_autograd.f
        for when, key, by in (("before", "AutogradCPU", 3), ("", "AutogradCUDA", 10), ("after", "AutogradCPU", 3)):
            if when in ("", of_cpu):
                library.impl("f", ten_times(operator, by), key)
        assert gradient(operator, "cuda") == [10, 10]
        assert operator(torch.ones(1, device="cuda")).item() == 3
        assert operator(torch.ones(1)).item() == 2
        if of_cpu:
            assert gradient(operator, "cpu") == [3, 3]


@pytest.mark.parametrize("name", ["sigmoid", "linear"])
def test_a_kernel_of_the_programs_replaces_pytorchs_on_devices_alone(name: str, session: Session) -> None:
    x = torch.zeros(2, 2)
    operator = getattr(torch.ops.aten, name)
    given = (x,) if name == "sigmoid" else (x, x)
    expected = operator(*given)
    on_device = [tensor.cuda() for tensor in given]
    assert operator(*on_device).cpu().equal(expected)  # its plan is known already
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl(name, lambda x, *others: x + 7, "CUDA")
        assert operator(*on_device).tolist() == [[7, 7], [7, 7]]
        assert operator(*given).equal(expected)
    assert operator(*on_device).cpu().equal(expected)


def test_autocast_rules_of_an_operator_are_those_of_its_device(session: Session) -> None:
    with torch.library._scoped_library("us_autocast", "DEF") as library:
        library.define("f(Tensor x) -> Tensor")
        library.impl("f", lambda x: x.clone(), "CompositeExplicitAutograd")
        torch.library.register_autocast("us_autocast::f", "cuda", torch.float16, lib=library)
        on_device, on_host = torch.ones(2, device="cuda"), torch.ones(2)
        with torch.autocast("cuda"):
            assert torch.ops.us_autocast.f(on_device).dtype == torch.float16
            assert torch.ops.us_autocast.f(on_host).dtype == torch.float32
        with torch.autocast("cpu"):
            assert torch.ops.us_autocast.f(on_device).dtype == torch.float32
        assert torch.ops.us_autocast.f(on_device).dtype == torch.float32
