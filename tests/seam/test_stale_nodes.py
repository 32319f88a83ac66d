"""Autograd nodes whose stream is not the one that their gradient comes from: captures that fail, and a warning.

The texts are PyTorch's (torch/csrc/autograd/input_buffer.cpp), the cases those of pytorch#164302, #180090 and #137483.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from windtunnel.machine.capture import IMPLICIT
from windtunnel.seam.torch.state import stale_nodes
from windtunnel.session import Session

STALE = "autograd node '{}' has a stale reference to the default stream (stream 0) from warmup."
MISMATCH = "The AccumulateGrad node's stream does not match the stream of the node that produced"
LEAF = "torch::autograd::AccumulateGrad"

says_so = pytest.mark.skipif(stale_nodes.overrides is None, reason="PyTorch says so from 2.13 on")


@pytest.fixture
def override() -> Iterator[None]:
    torch.autograd.graph.set_override_stale_capture_stream(True)
    yield
    torch.autograd.graph.set_override_stale_capture_stream(False)


def on_side_stream(work: Callable[[], object]) -> object:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        out = work()
    torch.cuda.current_stream().wait_stream(side)
    return out


def capture(work: Callable[[], torch.Tensor]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work().backward()
    return graph


@pytest.fixture
def step(session: Session) -> Callable[[], torch.Tensor]:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).cuda(), torch.ones(2, 4, device="cuda")
    on_side_stream(lambda: net(x).sum().backward())

    def step() -> torch.Tensor:
        return net(x).sum()

    return step


def refused(name: str) -> object:
    return pytest.raises(RuntimeError, match=re.escape(STALE.format(name)))


@says_so
@pytest.mark.parametrize("reached", ["backward", "forward alone"])
def test_leaves_that_a_graph_of_the_default_stream_keeps(step: Callable[[], torch.Tensor], reached: str) -> None:
    loss = step()
    if reached == "backward":
        loss.backward()
    with refused(LEAF):
        capture(step)
    del loss
    capture(step).replay()


@says_so
def test_leaves_that_were_used_before_there_was_a_side_stream(session: Session) -> None:
    net, x = nn.Linear(4, 4).cuda(), torch.ones(2, 4, device="cuda")
    loss = net(x).sum()
    loss.backward()
    with refused(LEAF):
        capture(lambda: net(x).sum())
    del loss
    capture(lambda: net(x).sum()).replay()


@says_so
def test_a_node_of_the_default_stream_within_the_graph(step: Callable[[], torch.Tensor]) -> None:
    scale = torch.ones(1, device="cuda", requires_grad=True).exp()
    with refused("ExpBackward0"):
        capture(lambda: (step() * scale).sum())


@says_so
def test_a_forward_pass_of_the_default_stream(step: Callable[[], torch.Tensor]) -> None:
    loss = step()
    with refused("SumBackward0"):
        capture(lambda: loss)


@says_so
def test_a_gradient_for_chosen_inputs_reaches_only_their_nodes(step: Callable[[], torch.Tensor]) -> None:
    stale = torch.ones(1, device="cuda", requires_grad=True)
    kept = stale * 2
    fresh = torch.ones(1, device="cuda", requires_grad=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.autograd.grad((stale * fresh).sum(), fresh)
    with refused(LEAF), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.autograd.grad((stale * fresh).sum(), stale)
    assert kept.requires_grad


@says_so
@pytest.mark.usefixtures("override")
def test_redirected_nodes_are_captured(session: Session) -> None:
    weight = torch.ones(4, device="cuda", requires_grad=True)
    scale = torch.full((1,), 3.0, device="cuda", requires_grad=True) * 2
    kept = weight * 1
    graph = capture(lambda: (weight * scale).sum())
    assert weight.grad is not None
    for _ in range(2):
        weight.grad.zero_()
        graph.replay()
    assert weight.grad.tolist() == [6.0] * 4
    assert kept.requires_grad


def test_nodes_of_a_side_stream_join_the_capture(step: Callable[[], torch.Tensor]) -> None:
    kept = on_side_stream(step)
    capture(step).replay()
    assert isinstance(kept, torch.Tensor)


def test_older_versions_leave_it_to_cuda(step: Callable[[], torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale_nodes, "overrides", None)
    loss = step()
    with pytest.raises(RuntimeError, match="failed due to a previous error during capture") as raised:
        capture(step)
    assert str(raised.value.__context__).startswith(f"CUDA error: {IMPLICIT}")
    assert loss.requires_grad


def test_the_default_stream_cannot_join_a_capture(session: Session) -> None:
    x, default = torch.ones(4, device="cuda", requires_grad=True), torch.cuda.default_stream()

    def work() -> torch.Tensor:
        default.wait_stream(torch.cuda.current_stream())
        return x.sum()

    with pytest.raises(RuntimeError, match="previous error") as raised:
        capture(work)
    assert IMPLICIT in str(raised.value.__context__)


def mismatches(work: Callable[[], object]) -> int:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        work()
    return sum(str(one.message).startswith(MISMATCH) for one in seen)


warned = pytest.mark.skipif(stale_nodes.warns is stale_nodes.never, reason="PyTorch warns from 2.10 on")


@warned
def test_a_leaf_of_another_stream_is_warned_of_once(step: Callable[[], torch.Tensor]) -> None:
    kept = on_side_stream(step)
    assert mismatches(lambda: [step().backward() for _ in range(3)]) == 1
    assert isinstance(kept, torch.Tensor)


@warned
def test_no_warning_once_the_other_graph_is_gone(step: Callable[[], torch.Tensor]) -> None:
    on_side_stream(step)
    assert mismatches(lambda: step().backward()) == 0


@warned
def test_the_warning_can_be_turned_off(step: Callable[[], torch.Tensor]) -> None:
    kept = on_side_stream(step)
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    try:
        assert mismatches(lambda: step().backward()) == 0
    finally:
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(True)
    assert mismatches(lambda: step().backward()) == 1
    assert isinstance(kept, torch.Tensor)
