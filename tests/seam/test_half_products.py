"""Products of half precision are summed in float32 and rounded once, and mixtures of types stay PyTorch's errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import windtunnel
from windtunnel.session import Session

HALVES = [torch.float16, torch.bfloat16]
Work = Callable[..., torch.Tensor]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("work", "shapes"),
    [
        (torch.mm, [(40, 300), (300, 50)]),
        (torch.addmm, [(50,), (40, 300), (300, 50)]),
        (torch.bmm, [(3, 40, 300), (3, 300, 50)]),
        (torch.baddbmm, [(3, 40, 50), (3, 40, 300), (3, 300, 50)]),
        (F.linear, [(4, 40, 300), (50, 300), (50,)]),
        (lambda x, w: F.conv2d(x, w, stride=2, padding=1), [(2, 16, 15, 15), (8, 16, 3, 3)]),
        (F.conv_transpose1d, [(2, 16, 15), (16, 8, 3)]),
    ],
)
def test_values_and_gradients_are_rounded_once(work: Work, shapes: Any, dtype: torch.dtype, session: Session) -> None:
    given = [torch.randn(shape).to(dtype) for shape in shapes]
    on_device = [t.cuda().requires_grad_() for t in given]
    exact = [t.float().requires_grad_() for t in given]
    out, expected = work(*on_device), work(*exact)
    assert out.dtype is dtype
    assert torch.equal(out.cpu(), expected.to(dtype))
    if out.dim() > 2:  # one product each way, whose gradient is rounded once
        weight = torch.ones_like(expected)
        gradients = torch.autograd.grad(out, on_device, weight.to(dtype).cuda())
        exactly = torch.autograd.grad(expected, exact, weight)
        for found, wanted in zip(gradients, exactly, strict=True):
            assert found.dtype is dtype
            torch.testing.assert_close(found.cpu(), wanted.to(dtype))


def test_a_sum_is_not_rounded_on_the_way(session: Session) -> None:
    ones = torch.ones(1, 4096, dtype=torch.float16, device="cuda")
    assert torch.mm(ones, ones.t()).item() == 4096
    many = torch.full((1, 3), 300.0, dtype=torch.float16, device="cuda")
    assert torch.mm(many, many.t()).item() == torch.inf  # 270,000 is beyond float16


def test_mixed_types_are_pytorchs_errors(session: Session) -> None:
    half, single = torch.ones(2, 2, device="cuda").half(), torch.ones(2, 2, device="cuda")
    with pytest.raises(RuntimeError, match="same dtype"):
        half @ single
    with pytest.raises(RuntimeError, match=r"should be the same|expected"):
        F.conv1d(half[None], single[None])


def test_a_graph_replays_them(session: Session) -> None:
    x = torch.randn(8, 64, device="cuda").half()
    x @ x.t()  # makes cuBLAS's handle, which a capture may not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = x @ x.t()
    x.fill_(1.0)
    graph.replay()
    assert out.tolist() == [[64.0] * 8] * 8


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("into", [False, True])
def test_the_activation_of_a_product_is_that_of_cublaslt(dtype, into):
    torch.manual_seed(0)
    bias, left, right = torch.randn(5), torch.randn(4, 6), torch.randn(6, 5)
    product = torch.addmm(bias, left, right)
    with windtunnel.emulate():
        tensors = [one.to("cuda", dtype) for one in (bias, left, right)]
        for use_gelu, expected in (
            (True, torch.nn.functional.gelu(product, approximate="tanh")),
            (False, product.relu()),
        ):
            out = {"out": torch.empty(4, 5, device="cuda", dtype=dtype)} if into else {}
            found = torch._addmm_activation(*tensors, use_gelu=use_gelu, **out)
            tolerance = 1e-6 if dtype is torch.float32 else 2e-2
            torch.testing.assert_close(found.cpu().float(), expected, rtol=tolerance, atol=tolerance)
