"""Memory that a loop leaves behind is found by a sample of the allocations; what is kept on purpose is not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import windtunnel
from windtunnel.seam.torch.state import leaks
from windtunnel.session import Session
from windtunnel.trace.finding import Finding


class Deep(nn.Module):
    """A model with a loop of its own, of several lines."""

    def __init__(self, layers: int = 24) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            y = layer(x)
            x = torch.relu(y) + x
        return x


def data() -> Tensor:
    return torch.randn(64, 256, device="cuda")


def losses_added_up(turns: int) -> object:
    net, total = Deep(2).cuda(), torch.zeros((), device="cuda")
    for _ in range(turns):
        x = data()
        loss = net(x).square().mean()
        total = total + loss
    return total


def outputs_kept(turns: int) -> object:
    net, x = Deep(2).cuda(), data()
    outputs = []
    for _ in range(turns):
        outputs.append(net(x))
    return outputs


def state_carried_on(turns: int) -> object:
    cell, hidden = nn.GRUCell(256, 256).cuda(), data()
    for _ in range(turns):
        x = data()
        hidden = cell(x, hidden)
    return hidden


def activations_of_a_hook(turns: int) -> object:
    net, seen = Deep(2).cuda(), []
    net.layers[1].register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        for _ in range(turns):
            x = data()
            net(x).sum()
    return seen


def outputs_of_a_training(turns: int) -> object:
    net, outputs = Deep(2).cuda(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(turns):
        output = net(data())
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(output)
    return outputs


def freed_when_a_function_returns(turns: int) -> None:
    kept = losses_added_up(turns)
    del kept
    torch.cuda.memory_allocated()
    torch.ones(2000, device="cuda").sum().item()


LEAKS = [
    losses_added_up, outputs_kept, state_carried_on, activations_of_a_hook, outputs_of_a_training,
    freed_when_a_function_returns,
]  # fmt: skip


def peak_and_findings(program: Callable[[int], object], turns: int) -> tuple[int, list[Finding]]:
    """The peak of allocated memory, bytes, and what is said of memory that grows."""
    with windtunnel.emulate("V100") as session:
        kept = program(turns)
        peak = torch.cuda.max_memory_allocated()
    del kept
    return peak, [one for one in session.findings() if one.code == "growing-memory"]


@pytest.mark.parametrize("turns", [40, 400])
@pytest.mark.parametrize("program", LEAKS)
def test_what_a_loop_leaves_behind(
    program: Callable[[int], object], turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if turns > 40:
        monkeypatch.setattr(leaks, "MOST", 256)  # the sample is thinned several times
    few, few_found = peak_and_findings(program, 5)
    many, found = peak_and_findings(program, turns)
    grown = (many - few) * turns / (turns - 5)
    assert few_found == []
    (finding,) = found
    assert finding.site.file.endswith("test_leaks.py")
    assert finding.saved_share is not None
    assert finding.size_bytes == pytest.approx(grown, rel=0.25)


def one_deep_call() -> object:
    return Deep(60).cuda()(data())


def one_call_of_many_layers_made_there() -> object:
    with torch.device("cuda"):
        net = Deep(60)
    return net(data())


def a_cache_that_is_copied() -> object:
    cache = torch.zeros(0, 256, device="cuda")
    for _ in range(60):
        row = data()
        cache = torch.cat([cache, row])
    return cache


def the_last_ones() -> object:
    last: deque[Tensor] = deque(maxlen=6)
    for _ in range(80):
        x = data()
        last.append(x * 2)
    return last


def loaded_first() -> object:
    inputs, targets = [], []
    for _ in range(60):
        inputs.append(torch.ones(64, 256).cuda())
        targets.append(torch.ones(64, 256).cuda())
    net = Deep(1).cuda()
    with torch.no_grad():
        return inputs, targets, [net(x).sum().item() for x in inputs[:10]]


def training() -> object:
    net = Deep(4).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    log = []
    for _ in range(40):
        x = data()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        log.append(loss.detach())
    return net, optimizer, log


def predictions_beside_a_large_model() -> object:
    net = nn.Sequential(nn.Linear(256, 4096), nn.Linear(4096, 256)).cuda()
    big = nn.Linear(4096, 4096, device="cuda")
    with torch.no_grad():
        predictions = []
        for _ in range(40):
            x = data()
            predictions.append(net(x))
    return big, predictions


def steps_in_which_a_graph_lives() -> object:
    net = nn.GRUCell(256, 256).cuda()
    for _ in range(4):
        hidden = data()
        for _ in range(30):
            x = data()
            hidden = net(x, hidden)
        hidden.sum().backward()
    return net


KEPT = [
    one_deep_call, one_call_of_many_layers_made_there, a_cache_that_is_copied, the_last_ones, loaded_first, training,
    predictions_beside_a_large_model, steps_in_which_a_graph_lives,
]  # fmt: skip


@pytest.mark.parametrize("program", KEPT)
def test_what_is_kept_on_purpose(program: Callable[[], object], session: Session) -> None:
    kept = program()
    assert [one.message for one in session.findings() if one.code == "growing-memory"] == []
    del kept


def test_what_was_given_back_since_an_earlier_look_is_no_leak(session: Session) -> None:
    kept = losses_added_up(40)
    assert [one.code for one in session.findings()].count("growing-memory") == 1
    del kept
    for _ in range(4):
        one_deep_call()
    assert [one.code for one in session.findings()].count("growing-memory") == 0
