"""Tensors around tensors, and tensors of shapes alone: where they are, and what happens on a device for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

import windtunnel
from windtunnel.session import Session


class Wrapper(torch.Tensor):
    """A tensor around a tensor, as DTensor and quantized weights are."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device, requires_grad=inner.requires_grad
        )
        made.inner = inner
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(lambda value: value.inner if isinstance(value, cls) else value, (args, kwargs or {}))
        return tree_map(lambda value: cls(value) if isinstance(value, torch.Tensor) else value, func(*args, **kwargs))


class Passing(torch.autograd.Function):
    """Hands a tensor on."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        """The same values in another tensor."""
        return value + 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """The gradient as it is."""
        return grad


def test_a_wrapper_is_where_its_parts_are(session: Session) -> None:
    inner = torch.ones(2, device="cuda:1")
    assert Wrapper(inner).device == inner.device
    assert Wrapper(Wrapper(inner)).device == inner.device
    assert Wrapper(inner).is_cuda


def test_a_wrapper_stays_where_it_was_made(session: Session) -> None:
    """C++ keeps the device of `_make_wrapper_subclass`: FSDP refuses parameters on a GPU that it is to offload."""
    wrapped = Wrapper(torch.ones(2, device="cuda:1"))
    wrapped.inner = torch.ones(2)
    assert wrapped.device == torch.device("cuda", 1)
    assert Wrapper(torch.ones(2)).device == torch.device("cpu")


def test_autograd_takes_a_wrapper(session: Session) -> None:
    wrapped = Wrapper(torch.ones(2, device="cuda", requires_grad=True))
    assert Passing.apply(wrapped).device == torch.device("cuda", 0)


def test_a_wrapper_takes_a_gradient_without_data() -> None:
    """As FSDP2 sets those of float8 weights: C++ compares the devices of both."""
    with windtunnel.emulate("A100", no_data=True):
        weight = nn.Parameter(Wrapper(torch.ones(2, device="cuda")))
        weight.grad = torch.ones(2, device="cuda")
        assert weight.device == weight.grad.device == torch.device("cuda", 0)


def test_a_wrapper_that_is_in_place_does_not_move(session: Session) -> None:
    wrapped = Wrapper(Wrapper(torch.ones(2, device="cuda")))
    before = len(session.trace)
    assert wrapped.to("cuda:0").device == torch.device("cuda", 0)
    assert len(session.trace) == before


def test_shapes_alone_happen_on_no_device(session: Session) -> None:
    torch.ones(1, device="cuda")
    rows, allocated = len(session.trace), torch.cuda.memory_allocated()
    with FakeTensorMode():
        made = torch.empty(1 << 20, device="cuda")
        assert (made + made).shape == made.shape
    assert (len(session.trace), torch.cuda.memory_allocated()) == (rows, allocated)
