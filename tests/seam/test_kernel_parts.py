"""Operators that are several kernels on CUDA: their values, their kernels, and the memory that an H200 took."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from windtunnel.session import Session
from windtunnel.trace.operation import Kind

rows = pytest.mark.rows
COUNT = 1 << 16
"""Elements, of which the largest buffers are multiples."""


def taken(function: Callable[[], object]) -> tuple[int, int]:
    """How many buffers of COUNT numbers a call takes at most, and how many it keeps, rounded."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = function()
    peak, after = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
    del kept
    return round(peak / COUNT / 4), round(after / COUNT / 4)


LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, int]]] = {
    "mse_loss": (F.mse_loss, (2, 1)),
    "smooth_l1_loss": (F.smooth_l1_loss, (2, 1)),
    "huber_loss": (F.huber_loss, (1, 0)),
    "binary_cross_entropy": (F.binary_cross_entropy, (1, 1)),
    "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, (2, 0)),
    "soft_margin_loss": (F.soft_margin_loss, (1, 1)),
}


@rows("mse_loss", "binary_cross_entropy")
@pytest.mark.parametrize("name", LOSSES)
def test_losses_take_what_they_reduce(session: Session, name: str) -> None:
    loss, expected = LOSSES[name]
    x, y = torch.rand(COUNT, device="cuda"), torch.rand(COUNT, device="cuda")
    assert taken(lambda: loss(x, y)) == expected
    assert taken(lambda: loss(x, y, reduction="none")) == (2 if "logits" in name else 1, 1)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_of_logits_has_the_cpus_values(session: Session, reduction: str, weighted: bool) -> None:
    found = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        x, y = torch.randn(4, 5), torch.rand(4, 5)
        x, y = x.to(device).requires_grad_(), y.to(device)
        given = {"weight": torch.arange(1.0, 6.0, device=device), "pos_weight": torch.full((5,), 3.0, device=device)}
        loss = F.binary_cross_entropy_with_logits(x, y, reduction=reduction, **given if weighted else {})
        loss.sum().backward()
        found.append((loss.detach().cpu(), x.grad.cpu()))
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(there, here)


def kernels(session: Session, function: Callable[[], object]) -> list[str]:
    before = len(session.trace)
    function()
    return [row.signature.name for row in [*session.trace][before:] if row.kind == Kind.KERNEL]


def test_several_kernels(session: Session) -> None:
    x = torch.randn(8, 8, device="cuda")
    assert kernels(session, lambda: torch.count_nonzero(x)) == ["aten::ne", "aten::sum"]
    assert kernels(session, lambda: F.binary_cross_entropy_with_logits(x, x)) == [
        "aten::log_sigmoid_forward", "aten::rsub", "aten::mul_", "aten::sub_", "aten::mean",
    ]  # fmt: skip
    safe = kernels(session, lambda: torch.ops.aten._safe_softmax(x, -1))
    assert safe[:3] == ["aten::_softmax", "aten::eq", "aten::all"]


def test_rows_that_are_masked_whole_are_zero(session: Session) -> None:
    x = torch.tensor([[0.0, float("-inf")], [float("-inf")] * 2], device="cuda")
    assert torch.ops.aten._safe_softmax(x, -1).tolist() == [[1, 0], [0, 0]]


def test_counts(session: Session) -> None:
    x = torch.tensor([[0, 1, 2], [0, 0, 3]], device="cuda")
    assert torch.count_nonzero(x).item() == 3
    assert torch.count_nonzero(x, 1).tolist() == [2, 1]
    assert torch.count_nonzero(x, (0, 1)).item() == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_sigmoid_keeps_no_buffer(session: Session, dtype: torch.dtype) -> None:
    x = torch.randn(COUNT, dtype=dtype)
    given = x.cuda().requires_grad_()
    assert taken(lambda: F.logsigmoid(given))[1] == round(dtype.itemsize / 4)
    F.logsigmoid(given).sum().backward()
    here = x.requires_grad_()
    F.logsigmoid(here).sum().backward()
    torch.testing.assert_close(given.grad.cpu(), here.grad)


@pytest.mark.parametrize(
    "select", [lambda x: x.topk(3)[0], lambda x: x.sort()[0], lambda x: x.max(1)[0], lambda x: x.kthvalue(2)[0]]
)
def test_what_selects_writes_its_gradient_once(session: Session, select: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, COUNT // 4)
    given = x.cuda().requires_grad_()
    total = select(given).sum()
    assert taken(total.backward)[0] == 1
    here = x.requires_grad_()
    select(here).sum().backward()
    assert torch.equal(given.grad.cpu(), here.grad)


@rows("_fft_c2r")
def test_a_real_transform_copies_what_cufft_writes_over(session: Session) -> None:
    x = torch.randn(4, COUNT // 8, dtype=torch.complex64, device="cuda")
    assert taken(lambda: torch.fft.irfft(x)) == (2, 1)


@rows("_softmax_backward_data")
def test_softmaxs_gradient_takes_a_product(session: Session) -> None:
    x = torch.randn(4, COUNT // 4, device="cuda", requires_grad=True)
    out, grad = torch.softmax(x, -1), torch.randn(4, COUNT // 4, device="cuda")
    assert taken(lambda: torch.autograd.grad(out, x, grad)) == (2, 1)


@rows("multi_margin_loss", "any")
def test_small_buffers(session: Session) -> None:
    """An H200's peaks of PyTorch's own samples, in blocks of 512 bytes."""
    scores, classes = torch.randn(5, 10, device="cuda"), torch.zeros(5, dtype=torch.int64, device="cuda")
    one = torch.ones((), device="cuda")
    for function in (lambda: F.multi_margin_loss(scores, classes), lambda: torch.any(one), lambda: torch.all(one)):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        kept = function()
        assert torch.cuda.max_memory_allocated() - before == 1024
        del kept
