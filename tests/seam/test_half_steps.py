"""CUDA's losses and thresholds in half precision, step by step as the kernels' C++ has them, element by element."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import windtunnel

Tensor = torch.Tensor
SIZE = 400
HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


class Half:
    """A number of one half precision type: each operation between two of them rounds, one with a float does not."""

    def __init__(self, value: float, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.value: float = torch.tensor(value, dtype=torch.float32).to(dtype).item()

    def _with(self, other: "Half | float", found: Callable[[Tensor, Tensor], Tensor]) -> "Half | float":
        right = other.value if isinstance(other, Half) else other
        value = found(torch.tensor(self.value), torch.tensor(right)).item()
        return Half(value, self.dtype) if isinstance(other, Half) else value

    def __mul__(self, other):
        return self._with(other, torch.mul)

    def __sub__(self, other):
        return self._with(other, torch.sub)

    def __truediv__(self, other):
        return self._with(other, torch.div)

    def __neg__(self) -> "Half":
        return Half(-self.value, self.dtype)


def single(value: float) -> float:
    """A float32."""
    return torch.tensor(value, dtype=torch.float32).item()


def smooth_l1(a: Half, b: Half, beta: Half) -> float:
    """`SmoothL1Functor`."""
    z = abs((a - b).value)
    half = Half(0.5, a.dtype)
    if z < beta.value:
        return single(single(half * z * z) / beta.value)
    return single(z - (half * beta).value)


def huber(a: Half, b: Half, delta: Half) -> float:
    """`HuberFunctor`."""
    z = abs((a - b).value)
    half = Half(0.5, a.dtype)
    return single(half * z * z) if z < delta.value else delta * single(z - (half * delta).value)


def smooth_l1_backward(a: Half, b: Half, grad: Half, norm: Half, beta: Half) -> Half:
    """`SmoothL1BackwardFunctor`."""
    x = a - b
    if x.value < -beta.value:
        return -norm * grad
    return norm * grad if x.value > beta.value else norm * x * grad / beta


def huber_backward(a: Half, b: Half, grad: Half, norm: Half, delta: Half) -> Half:
    """`HuberBackwardFunctor`."""
    x = a - b
    if x.value < -delta.value:
        return -norm * grad * delta
    return norm * grad * delta if x.value > delta.value else norm * x * grad


LOSSES = {
    "smooth_l1": (lambda x, y, how: F.smooth_l1_loss(x, y, reduction=how, beta=0.3), smooth_l1, smooth_l1_backward),
    "huber": (lambda x, y, how: F.huber_loss(x, y, reduction=how, delta=0.3), huber, huber_backward),
}


@HALVES
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradient(name: str, dtype: torch.dtype) -> None:
    loss, forward, backward = LOSSES[name]
    x, y = (torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in (1, 2))
    limit, norm = Half(0.3, dtype), Half(1 / SIZE, dtype)
    pairs = [(Half(a, dtype), Half(b, dtype)) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    each = torch.tensor([forward(a, b, limit) for a, b in pairs]).to(dtype)
    grads = torch.tensor([backward(a, b, Half(1, dtype), norm, limit).value for a, b in pairs]).to(dtype)
    with windtunnel.emulate("A100"):
        on_gpu = x.cuda().requires_grad_()
        assert torch.equal(loss(on_gpu, y.cuda(), "none").detach().cpu(), each)
        mean = loss(on_gpu, y.cuda(), "mean")
        mean.backward()
        assert on_gpu.grad is not None
        assert torch.equal(on_gpu.grad.cpu(), grads)
        assert torch.equal(mean.detach().cpu(), each.mean())


NUMBERS = {
    "threshold": (lambda x: F.threshold(x, 0.3, 0.1), lambda x, limit, low: torch.where(x <= limit, low, x)),
    "hardshrink": (lambda x: F.hardshrink(x, 0.3), lambda x, limit, _: torch.where(x.abs() <= limit, 0, x)),
    "softshrink": (
        lambda x: F.softshrink(x, 0.3),
        lambda x, limit, _: torch.where(x > limit, x - limit, torch.where(x < -limit, x + limit, 0)),
    ),
}


@HALVES
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_rounded_first(name: str, dtype: torch.dtype) -> None:
    call, expected = NUMBERS[name]
    limit, low = (torch.tensor(value).to(dtype) for value in (0.3, 0.1))
    x = torch.cat([torch.randn(SIZE, generator=torch.Generator().manual_seed(3)).to(dtype), limit[None], -limit[None]])
    with windtunnel.emulate("A100"):
        on_gpu = x.cuda().requires_grad_()
        out = call(on_gpu)
        out.sum().backward()
        assert on_gpu.grad is not None
        assert torch.equal(out.detach().cpu(), expected(x, limit, low).to(dtype))
        inside = x <= limit if name == "threshold" else x.abs() <= limit
        assert torch.equal(on_gpu.grad.cpu(), (~inside).to(dtype))


def test_a_number_that_does_not_fit_is_refused() -> None:
    with windtunnel.emulate("A100"):
        x = torch.ones(3, device="cuda", dtype=torch.float16)
        with pytest.raises(RuntimeError, match="value cannot be converted to type c10::Half without overflow"):
            F.threshold(x, 1e9, 0.0)
        assert F.threshold(x.bfloat16(), 1e9, 0.0).tolist() == [0, 0, 0]
        assert F.threshold(x, float("inf"), 2.0).tolist() == [2, 2, 2]


def test_what_is_written_into_a_tensor_and_what_a_graph_replays() -> None:
    with windtunnel.emulate("A100"):
        x, y = torch.ones(2, 8, device="cuda", dtype=torch.float16), torch.zeros(2, 8, device="cuda").half()
        out = torch.empty(2, 8, device="cuda", dtype=torch.float16)
        torch._C._nn.smooth_l1_loss(x, y, 0, 0.3, out=out)
        assert torch.equal(out, F.smooth_l1_loss(x, y, reduction="none", beta=0.3))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = F.huber_loss(x, y, reduction="none", delta=0.3)
        x.fill_(0.7)
        graph.replay()
        assert torch.equal(found, F.huber_loss(x, y, reduction="none", delta=0.3))
        with pytest.raises(RuntimeError, match="non-positive values for delta"):
            F.huber_loss(x, y, delta=-1.0)
