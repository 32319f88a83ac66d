"""A gradient ends on the device of its tensor, whatever joined the two, and a copy of what has one is a copy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from windtunnel.session import Session

DEVICES = ("cpu", "cuda:0", "cuda:1")


def leaf(device: str) -> torch.Tensor:
    return torch.tensor([2.0, 3.0], device=device).requires_grad_()


@pytest.mark.parametrize("pinned", [False, True])
def test_a_copy_of_what_needs_gradients_arrives_on_the_host(session: Session, pinned: bool) -> None:
    target = torch.zeros(2, pin_memory=pinned)
    target.copy_(leaf("cuda:1") * 3, non_blocking=True)
    torch.cuda.synchronize(1)
    assert target.tolist() == [6, 9]


def into_a_tensor(target: torch.Tensor, value: torch.Tensor) -> None:
    target.copy_(value)


def into_a_view(target: torch.Tensor, value: torch.Tensor) -> None:
    target.t()[0].copy_(value)


def by_item(target: torch.Tensor, value: torch.Tensor) -> None:
    target[0] = value


@pytest.mark.parametrize("write", [into_a_tensor, into_a_view, by_item])
@pytest.mark.parametrize("there", DEVICES[:2])
@pytest.mark.parametrize("here", DEVICES)
def test_the_gradient_of_what_was_copied_comes_back(
    session: Session, here: str, there: str, write: Callable[[torch.Tensor, torch.Tensor], None]
) -> None:
    x, target, seen = leaf(here), torch.ones(2, 2, device=there), []
    y = x * 3
    y.register_hook(lambda gradient: seen.append(gradient.device))
    write(target, y)
    target.sum().backward()
    assert [*seen, x.grad.device] == [torch.device(here)] * 2
    assert x.grad.tolist() == ([6, 6] if write is into_a_tensor else [3, 3])


def test_a_loss_that_is_summed_on_the_host_leaves_gradients_where_they_belong(session: Session) -> None:
    here, there = leaf("cpu"), leaf("cuda:1")
    (here.sum() + there.sum().cpu()).backward()
    assert (here.grad.device, there.grad.device) == (here.device, there.device)


def test_the_gradient_of_a_number_on_the_host_is_on_the_host(session: Session) -> None:
    scale, x = torch.tensor(2.0, requires_grad=True), leaf("cuda:1")
    for _ in range(2):
        (scale * x + x.where(x > 2, scale)).sum().backward()
    assert (scale.grad.device, x.grad.device) == (scale.device, x.device)
    assert scale.grad.item() == 2 * (2 + 3 + 1)
    torch.optim.SGD([scale], lr=0.5).step()
    assert scale.item() == -4


def test_a_number_on_the_host_gathers_gradients_of_two_devices(session: Session) -> None:
    scale = torch.tensor(2.0, requires_grad=True)
    sum((scale * leaf(device)).sum().cpu() for device in DEVICES).backward()
    assert (scale.grad.device, scale.grad.item()) == (torch.device("cpu"), 15)


@pytest.mark.parametrize(("here", "there"), [("cpu", "cuda:0"), ("cuda:0", "cpu"), ("cuda:0", "cuda:1")])
def test_a_batch_of_gradients_comes_back(session: Session, here: str, there: str) -> None:
    x = leaf(here)
    batch = torch.eye(2, device=there)
    (found,) = torch.autograd.grad(x.to(there), x, batch, is_grads_batched=True)
    assert found.device == x.device
    assert found.tolist() == batch.tolist()


def test_a_gradient_lies_where_its_tensor_does(session: Session) -> None:
    here, there, host = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1"), torch.ones(2)
    with pytest.raises(RuntimeError, match=r"gradient with device type 'cuda' to a tensor with device type 'cpu'"):
        host.grad = here
    with pytest.raises(RuntimeError, match=r"gradient with device type 'cpu' to a tensor with device type 'cuda'"):
        here.grad = host
    with pytest.raises(RuntimeError, match=r"device with index '1' to a tensor located on device with index '0'"):
        here.grad = there
    with pytest.raises(RuntimeError, match="of size"):
        here.grad = torch.ones(3, device="cuda:0")
    here.grad = torch.zeros_like(here)
    assert here.grad.device == here.device
    del here.grad
    assert here.grad is None
    here.grad = torch.ones_like(here)
    here.grad = None
    assert here.grad is None


@pytest.mark.parametrize(("device", "expected"), [("cpu", [4.0, 4.0]), ("cuda:1", [6.0, 6.0])])
def test_an_operator_with_a_gradient_of_cudas_own_has_it(session: Session, device: str, expected: list[float]) -> None:
    x = leaf(device)
    torch._test_autograd_multiple_dispatch(x).backward(torch.full((2,), 3.0, device=device))  # + 1, and * 2 on CUDA
    assert x.grad.tolist() == expected
    with torch.inference_mode():
        assert torch._test_autograd_multiple_dispatch(x).device == x.device


@pytest.mark.parametrize(
    "function",
    [
        torch.sgn,
        lambda x: x.repeat(0),
        lambda x: torch.normal(x, 1.0) * 0 + x.sgn(),
        lambda x: (x * 2).sgn(),
        lambda x: torch.copysign(torch.ones_like(x), x),
    ],
)
@pytest.mark.parametrize("device", DEVICES)
def test_zeros_that_autograd_makes_lie_where_their_tensor_does(
    session: Session, device: str, function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Autograd's formulas make zeros of sizes and options alone: they name no device."""
    x = leaf(device)
    function(x).sum().backward()
    assert x.grad.device == torch.device(device)
    assert (x.grad + 1).device == torch.device(device)  # a zero tensor would lose it
    assert (x.grad + 1).tolist() == [1, 1]
