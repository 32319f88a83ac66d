"""Convolutions of one channel into one are computed by sums of shifted pictures: the values of the CPU's own."""

from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F

from windtunnel.session import Session


@pytest.mark.parametrize(
    ("convolve", "shape", "kernel"),
    [
        (F.conv2d, (1, 1, 150, 150), (3, 3)),
        (lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(1, 2)), (2, 1, 130, 100), (3, 2)),
        (lambda x, w, b: F.conv2d(x, w, b, dilation=3, padding="same"), (1, 1, 150, 150), (3, 3)),
        (lambda x, w, b: F.conv1d(x, w, b, stride=3), (1, 1, 20000), (5,)),
        (lambda x, w, b: F.conv3d(x, w, b, padding=1), (1, 1, 30, 30, 30), (2, 2, 2)),
        (lambda x, w, b: F.conv2d(x, w, b), (1, 150, 150), (3, 3)),
    ],
)
@pytest.mark.parametrize("biased", [False, True])
def test_values_and_gradients_are_the_cpus(convolve, shape, kernel, biased, session: Session) -> None:
    x, weight, bias = torch.randn(shape), torch.randn(1, 1, *kernel), torch.randn(1) if biased else None
    leaves = [None if t is None else t.cuda().requires_grad_() for t in (x, weight, bias)]
    out = convolve(*leaves)
    expected = convolve(x, weight, bias)
    torch.testing.assert_close(out.cpu(), expected, rtol=1e-5, atol=1e-5)
    out.sum().backward()
    assert all(t is None or t.grad.shape == t.shape for t in leaves)


def test_a_large_picture_takes_no_longer_than_its_sums(session: Session) -> None:
    picture, weight = torch.ones(1, 1, 1500, 1500, device="cuda"), torch.ones(1, 1, 2, 2, device="cuda")

    def seconds(work) -> float:
        begin = time.process_time()
        work()
        return time.process_time() - begin

    on_device = min(seconds(lambda: F.conv2d(picture, weight)) for _ in range(5))
    on_host = min(seconds(lambda: F.conv2d(picture.cpu(), weight.cpu())) for _ in range(3))
    assert on_device < on_host


def test_a_kernel_larger_than_its_picture_is_pytorchs_error(session: Session) -> None:
    with pytest.raises(RuntimeError, match="Kernel size can't be greater than actual input size"):
        F.conv2d(torch.ones(1, 1, 2, 20000, device="cuda"), torch.ones(1, 1, 3, 3, device="cuda"))
