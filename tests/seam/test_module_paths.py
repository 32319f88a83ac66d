"""Whose memory is: modules by their paths, operators, parameters by their names, also in backward passes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import windtunnel
from windtunnel import gpus
from windtunnel.analysis.retime import retime
from windtunnel.reports.parts.peak import peaks
from windtunnel.session import Session
from windtunnel.trace.holders import ModuleHolder
from windtunnel.trace.trace import MemoryAction, Trace

MIB = 1 << 20


class Block(nn.Module):
    """A layer of a row of layers; its large result is kept for the backward pass."""

    def __init__(self, width: int, checkpointed: bool = False) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.checkpointed = checkpointed

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        """What is recomputed."""
        return self.down(self.up(x).sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """With its input."""
        if self.checkpointed:
            return x + checkpoint(self.inside, x, use_reentrant=False)
        return x + self.inside(x)


class Net(nn.Module):
    """An embedding, layers and a head."""

    def __init__(self, width: int = 64, words: int = 4096, checkpointed: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList([Block(width, checkpointed) for _ in range(3)])
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.words(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(net: nn.Module, steps: int = 2, batch: int = 512) -> torch.optim.Optimizer:
    """Some steps of Adam."""
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(steps):
        x = torch.zeros(batch, dtype=torch.long).cuda()
        nn.functional.cross_entropy(net(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def run(net_of: type[nn.Module] | None = None, **options: object) -> tuple[Trace, nn.Module]:
    """The trace of a small training without data."""
    with windtunnel.emulate("A100", memory_history=True, no_data=True) as session:
        net = (net_of or Net)(**options).cuda()
        optimizer = train(net)
        session.complete()
        assert optimizer.state
    return session.trace, net


def allocations(trace: Trace) -> list[MemoryAction]:
    return [action for action in trace.memory_actions() if action.action == "alloc"]


def held(trace: Trace, module: str, category: str) -> ModuleHolder:
    """The one row of the peak's modules that is this module's, of this category."""
    (found,) = [one for one in peaks(trace)[0].modules if (one.module, one.category) == (module, category)]
    return found


def test_parameters_and_states_are_named_by_module() -> None:
    trace, net = run()
    assert held(trace, "Net.words", "parameter").tensor == "weight"
    assert held(trace, "Net.words", "parameter").size_bytes == 4096 * 64 * 4
    states = held(trace, "Net.head", "optimizer")
    assert (states.operator, states.size_bytes) == ("Adam", 2 * 4096 * 64 * 4)
    assert states.tensor in ("exp_avg of weight", "exp_avg_sq of weight")
    assert isinstance(net, Net)


def test_layers_are_one_row_with_their_operator() -> None:
    trace, _ = run()
    layers = held(trace, "Net.layers.*", "activation")
    assert (layers.modules, layers.operator) == (3, "aten::sigmoid")


def test_backward_passes_belong_to_the_module_of_the_forward_pass() -> None:
    trace, _ = run()
    products = [one for one in allocations(trace) if one.role.operator == "aten::mm" and one.category != "workspace"]
    of_head = [one for one in products if one.role.module == "Net.head"]
    # A step's logits, and of its backward pass the gradients of the weight and of the layers' result.
    assert sorted(one.size_bytes for one in of_head) == sorted(2 * [512 * 4096 * 4, 4096 * 64 * 4, 512 * 64 * 4])
    of_embedding = [one for one in allocations(trace) if one.role.operator == "aten::embedding_dense_backward"]
    assert {one.role.module for one in of_embedding} == {"Net.words"}


def test_what_is_recomputed_belongs_to_its_module() -> None:
    trace, _ = run(checkpointed=True)
    up = [one for one in allocations(trace) if one.role.module.endswith(".up") and one.size_bytes == 512 * 256 * 4]
    assert {one.role.module for one in up} == {f"Net.layers.{number}.up" for number in range(3)}
    assert len(up) == 2 * 2 * 3  # in each of two steps, forward and again


def test_parameters_are_no_activations_before_the_first_forward_pass() -> None:
    with windtunnel.emulate("A100", memory_history=True, no_data=True) as session:
        net = Net(words=1 << 16).cuda()
        session.complete()
    peak = peaks(session.trace)[0]
    assert set(peak.categories) == {"parameter"}
    assert peak.modules[0].module in ("Net.words", "Net.head")
    assert isinstance(net, Net)


def test_a_graph_that_is_kept_is_retained() -> None:
    with windtunnel.emulate("A100", memory_history=True, no_data=True) as session:
        net, losses = Net().cuda(), []
        for _ in range(4):
            loss = net(torch.zeros(512, dtype=torch.long, device="cuda")).square().sum()
            loss.backward(retain_graph=True)
            losses.append(loss)
        session.complete()
        kept = held(session.trace, "Net.head", "retained")
    assert kept.size_bytes >= 2 * 512 * 4096 * 4


def test_two_models_are_told_apart_by_their_classes() -> None:
    class Other(Net):
        """Another model of the same parts."""

    with windtunnel.emulate("A100", memory_history=True, no_data=True) as session:
        both = Net().cuda(), Other().cuda()
        for net in both:
            train(net, 1)
        session.complete()
    modules = {one.role.module.partition(".")[0] for one in allocations(session.trace)}
    assert {"Net", "Other"} <= modules


def test_a_layer_that_was_added_later_is_found() -> None:
    with windtunnel.emulate("A100", memory_history=True, no_data=True) as session:
        net = Net().cuda()
        train(net, 1)
        net.layers[0].up = nn.Sequential(nn.Linear(64, 256), nn.Dropout()).cuda()
        train(net, 1)
        session.complete()
    assert "Net.layers.0.up.0" in {one.role.module for one in allocations(session.trace)}


def test_an_exception_in_a_forward_pass_leaves_no_module_running(kept: Session) -> None:
    class Failing(nn.Module):
        """Raises."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Never."""
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        nn.Sequential(nn.Identity(), Failing())(torch.ones(4, device="cuda"))
    x = torch.ones(300, device="cuda")
    kept.complete()
    assert allocations(kept.trace)[-1].role.module == ""
    assert x.is_cuda


def test_hooks_of_modules_end_with_the_emulation() -> None:
    run()
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


@pytest.fixture
def kept():
    """A V100 whose allocations are kept from the start."""
    with windtunnel.emulate("V100", memory_history=True) as emulated:
        yield emulated


def test_the_history_of_memory_stays_with_the_modules_that_it_names(tmp_path: Path) -> None:
    with windtunnel.emulate("V100", memory_history=True) as session:
        net = torch.nn.Sequential(torch.nn.Linear(64, 64)).cuda()
        net(torch.ones(8, 64, device="cuda")).sum().backward()
    found = retime(session.trace, gpus.parse("H100"))
    found.save(tmp_path / "h100.trace")
    read = Trace.load(tmp_path / "h100.trace")
    assert len(read.roles) > 1
    assert sorted(map(str, read.roles)) == sorted(map(str, session.trace.canonical().roles))
    assert len(read.memory) == len(session.trace.memory)
