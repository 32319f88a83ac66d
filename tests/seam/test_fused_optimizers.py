"""Fused optimizers whose learning rate is a tensor. Expected: the checks of FusedAdamKernel.cu and its kin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from windtunnel.session import Session

HOST, FIRST, SECOND = "cpu", "cuda:0", "cuda:1"


def adam(name: str, lr: str, step: str, scale: str = FIRST) -> None:
    p, grad, mean, square = (torch.ones(3, device=FIRST) for _ in range(4))
    getattr(torch, name)(
        [p], [grad], [mean], [square], [], [torch.ones((), device=step)], lr=torch.tensor(0.1, device=lr), beta1=0.9,
        beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        grad_scale=torch.ones((), device=scale), found_inf=torch.zeros((), device=scale),
    )  # fmt: skip
    torch.cuda.synchronize()


def adagrad(lr: str, step: str, scale: str = FIRST) -> None:
    p, grad, total = (torch.ones(3, device=FIRST) for _ in range(3))
    torch._fused_adagrad_(
        [p], [grad], [total], [torch.ones((), device=step)], lr=torch.tensor(0.1, device=lr), lr_decay=0.0,
        weight_decay=0.0, eps=1e-8, maximize=False, grad_scale=torch.ones((), device=scale),
    )  # fmt: skip
    torch.cuda.synchronize()


def sgd(lr: str, scale: str = FIRST) -> None:
    p, grad, momentum = (torch.ones(3, device=FIRST) for _ in range(3))
    torch._fused_sgd_(
        [p], [grad], [momentum], lr=torch.tensor(0.1, device=lr), weight_decay=0.0, momentum=0.9, dampening=0.0,
        nesterov=False, maximize=False, is_first_step=False, grad_scale=torch.ones((), device=scale),
    )  # fmt: skip
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_"])
@pytest.mark.parametrize("lr", [HOST, FIRST])
def test_a_learning_rate_may_lie_on_the_host(session: Session, name: str, lr: str) -> None:
    adam(name, lr, FIRST)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: adam("_fused_adam_", FIRST, FIRST, HOST), "grad_scale"),
        (lambda: adam("_fused_adamw_", SECOND, FIRST), "lr"),
        (lambda: adagrad(SECOND, FIRST), "lr"),
        (lambda: adagrad(FIRST, FIRST, HOST), "grad_scale"),
        (lambda: sgd(SECOND), "found_inf"),
        (lambda: sgd(FIRST, HOST), "grad_scale"),
    ],
)
def test_what_the_kernel_looks_at_is_named(session: Session, call: Callable[[], None], said: str) -> None:
    with pytest.raises(RuntimeError, match=f"^{said} must be on the same GPU device as the params$"):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: adam("_fused_adam_", HOST, HOST),
        lambda: adam("_fused_adamw_", FIRST, HOST),
        lambda: adam("_fused_adam_", HOST, FIRST, HOST),
        lambda: adagrad(HOST, HOST),
        lambda: sgd(HOST, HOST),
    ],
)
def test_what_it_does_not_look_at_is_an_illegal_access(session: Session, call: Callable[[], None]) -> None:
    with pytest.raises(torch.AcceleratorError, match=r"^CUDA error: an illegal memory access was encountered"):
        call()
