"""The streams of a backward pass: each node's own, what the engine waits for, and what a hook leaves behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers.findings import errors
from windtunnel.session import Session
from windtunnel.trace.operation import Kind

CYCLES = 20_000_000


class Slow(torch.autograd.Function):
    """Its gradient takes milliseconds."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(CYCLES)
        return grads[0] * 2


def streams_of(session: Session, name: str) -> list[int]:
    """The numbers of the streams on which an operator's kernels ran."""
    kernels = [record for record in session.trace if record.kind is Kind.KERNEL]
    return [record.lane.stream for record in kernels if record.signature.name == name]


def test_a_stream_that_a_hook_used_is_left_with_its_node(session: Session) -> None:
    own, other = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.ones(64, device="cuda", requires_grad=True)
    y = x.tanh()
    own.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(own):
        z = y.sigmoid()

    def hook(grad: torch.Tensor) -> None:
        with torch.cuda.stream(other):
            pass

    z.register_hook(hook)
    torch.cuda.current_stream().wait_stream(own)
    z.sum().backward()
    assert streams_of(session, "aten::sigmoid_backward") == [1]
    assert streams_of(session, "aten::tanh_backward") == [0]
    assert errors(session) == []


def test_a_node_waits_for_those_that_hand_it_a_gradient_alone(session: Session) -> None:
    side = torch.cuda.Stream()
    x, y = (torch.ones(64, device="cuda", requires_grad=True) for _ in range(2))
    begin, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    y.register_post_accumulate_grad_hook(lambda leaf: ended.record())
    middle = y.tanh()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        apart: torch.Tensor = Slow.apply(x)  # type: ignore[no-untyped-call]
    torch.cuda.current_stream().wait_stream(side)
    total = middle.sum() + apart.sum()
    begin.record()
    total.backward()
    torch.cuda.synchronize()
    behind = torch.cuda.Event(enable_timing=True)
    behind.record()
    torch.cuda.synchronize()
    assert begin.elapsed_time(ended) < 0.2 * begin.elapsed_time(behind)
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 64
    assert errors(session) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_leaf_of_another_type_gets_another_node(session: Session, dtype: torch.dtype) -> None:
    side, seen = torch.cuda.Stream(), []
    leaf = torch.ones(64, device="cuda", requires_grad=True)
    kept = leaf * 2  # its graph keeps the leaf's node
    leaf.data = torch.ones(64, device="cuda", dtype=dtype)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        other = (leaf * 2).sum()
    leaf.register_post_accumulate_grad_hook(lambda leaf: seen.append(torch.cuda.current_stream()))
    torch.cuda.current_stream().wait_stream(side)
    other.backward()
    assert seen == [torch.cuda.default_stream() if dtype is torch.float32 else side]
    assert kept.dtype is torch.float32
