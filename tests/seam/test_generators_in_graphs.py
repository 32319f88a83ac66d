"""Generators while a CUDA graph is captured (pytorch/pytorch#162504 and #162505, CUDAGeneratorImpl.cpp)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from windtunnel.session import Session

Tensor = torch.Tensor


def noisy(x: Tensor) -> Tensor:
    return x * torch.sigmoid(torch.randn(1, device="cuda"))


def with_gradient() -> tuple[Tensor, Tensor]:
    x = torch.ones(1, device="cuda", requires_grad=True)
    out = checkpoint(noisy, x, use_reentrant=False, preserve_rng_state=True)
    return out, torch.autograd.grad(out, x)[0]


def test_what_is_recomputed_draws_the_same_numbers_in_each_replay(session: Session) -> None:
    torch.cuda.manual_seed(42)
    eager = [with_gradient() for _ in range(2)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = with_gradient()
    torch.cuda.manual_seed(42)
    for out, gradient in eager:
        graph.replay()
        assert torch.equal(captured[0], out)
        assert torch.equal(captured[1], gradient)
    assert torch.equal(captured[0], captured[1])
    assert not torch.equal(eager[0][0], eager[1][0])


def test_a_state_counts_from_the_graphs_beginning(session: Session) -> None:
    torch.cuda.manual_seed(7)
    torch.rand(4, device="cuda")
    before = torch.cuda.get_rng_state().view(torch.int64).tolist()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        first = torch.cuda.get_rng_state().view(torch.int64).tolist()
        torch.rand(4, device="cuda")
        second = torch.cuda.get_rng_state().view(torch.int64).tolist()
        torch.cuda.manual_seed(7)
        assert torch.cuda.initial_seed() == 7
    assert (before, first, second) == ([7, 4], [7, 0], [7, 4])
    assert torch.cuda.get_rng_state().view(torch.int64).tolist() == before


SEED = "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as the"
FORBIDDEN = "Cannot {} during CUDA graph capture. If you need this call to be captured, please file an issue. Current"
CALL = "call CUDAGeneratorImpl::{}"


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda given: given.manual_seed(8), SEED),
        (lambda given: given.set_state(torch.tensor([9, 0]).view(torch.uint8)), SEED),
        (lambda given: given.seed(), FORBIDDEN.format(CALL.format("seed"))),
        (lambda given: given.get_offset(), FORBIDDEN.format(CALL.format("get_offset"))),
        (lambda given: given.set_offset(4), FORBIDDEN.format(CALL.format("set_offset"))),
        (lambda _: torch.Generator("cuda"), FORBIDDEN.format("construct a new CUDAGeneratorImpl")),
    ],
)
def test_what_a_capture_forbids(session: Session, use: Callable[[torch.Generator], object], message: str) -> None:
    torch.cuda.init()
    torch.cuda.manual_seed(7)
    generator = torch.cuda.default_generators[0]
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(1, device="cuda")
        with pytest.raises(RuntimeError) as caught:
            use(generator)
    assert str(caught.value).startswith(message)
