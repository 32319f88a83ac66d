"""What a remedy saves, by replay, beside the same program with the remedy."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import windtunnel
from windtunnel import checks
from windtunnel.trace.plain import Json

CLOSE = 0.03


class Layer(nn.Module):
    """A layer whose activations take much more than its result."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """With its input."""
        return x + self.down(nn.functional.gelu(self.up(x)))


class Net(nn.Module):
    """A row of layers."""

    def __init__(self, layers: int, width: int, checkpointed: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(width) for _ in range(layers)])
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All of them."""
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x


def train(layers: int, width: int, batch: int, checkpointed: bool = False) -> None:
    """Two steps of AdamW."""
    with torch.device("cuda"):
        net = Net(layers, width, checkpointed)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        net(torch.empty(batch, width, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def forward_peak(layers: int, width: int, batch: int, checkpointed: bool = False) -> int:
    """The most that is allocated in a forward pass through some layers, on a GPU that has room."""
    with windtunnel.emulate("H200", no_data=True):
        with torch.device("cuda"):
            net = Net(layers, width, checkpointed)
        torch.cuda.reset_peak_memory_stats()
        result = net(torch.empty(batch, width, device="cuda"))
        assert result.requires_grad
        return torch.cuda.max_memory_allocated()


def cures(layers: int, width: int, batch: int) -> dict[str, Json]:
    """What a run on a V100 that ran out of memory says of remedies, by their codes."""
    with windtunnel.emulate("V100", no_data=True, memory_history=True) as session:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            train(layers, width, batch)
        session.complete()
    return {one["remedy"]: one for one in session.trace.facts["cures"]}


ACTIVATIONS = 12, 1024, 1 << 15
"""Layers, a width and a batch with which a V100 is full of activations in the forward pass."""
STATES = 34, 2048, 64
"""The same of parameters, gradients and states, in the first optimizer step."""


def test_half_the_batch_and_checkpointing_save_what_they_save() -> None:
    found = cures(*ACTIVATIONS)
    half, checkpointing = found["batch"], found["checkpointing"]
    assert checkpointing["words"] == "checkpointing Net.layers.*"
    # It failed in the last layer, of whose weights all are there already.
    layers, width, batch = ACTIVATIONS
    whole = forward_peak(layers, width, batch)
    assert half["needed_bytes"] == pytest.approx(whole, rel=0.1)
    of_half = 1 - forward_peak(layers, width, batch // 2) / whole
    of_checkpointing = 1 - forward_peak(layers, width, batch, checkpointed=True) / whole
    assert half["saved_bytes"] / half["needed_bytes"] == pytest.approx(of_half, abs=CLOSE)
    # The layer that runs has all that it would keep without checkpointing, which is a bit too much.
    assert (
        of_checkpointing - 1 / layers < checkpointing["saved_bytes"] / half["needed_bytes"] < of_checkpointing + CLOSE
    )
    assert half["fits"]
    assert checkpointing["fits"]


def test_states_that_do_not_fit() -> None:
    found = cures(*STATES)
    needed = found["sharding"]["needed_bytes"]
    weights = 34 * (2 * 4 * 2048 * 2048 + 5 * 2048) * 4
    assert 3 * weights < needed <= 4.1 * weights
    assert found["sharding"]["saved_bytes"] == pytest.approx(needed / 2 - 2 * weights / 34, rel=0.05)
    # exp_avg is whole, and of exp_avg_sq what came before the request that failed.
    states = needed - 2 * weights
    assert found["8-bit-optimizer"]["saved_bytes"] == pytest.approx(states * (1 - (1 + 4 / 256) / 4), rel=0.05)
    assert "batch" not in found  # next to nothing depends on it
    assert "checkpointing" not in found


def test_the_finding_says_what_each_saves() -> None:
    with windtunnel.emulate("V100", no_data=True, memory_history=True) as session:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            train(*ACTIVATIONS)
        (finding,) = [one for one in session.findings() if one.code == "out-of-memory"]
    assert "checkpointing Net.layers.* saves" in finding.advice
    assert "half the batch saves" in finding.advice
    assert "Net.layers.*" in finding.message


def test_without_history_the_next_command_is_named() -> None:
    with windtunnel.emulate("V100", no_data=True) as session:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            train(*ACTIVATIONS)
        session.complete()
        session.trace.facts["command"] = "windtunnel run --memory-history train.py"
        (finding,) = [one for one in checks.run(session.trace) if one.code == "out-of-memory"]
    assert finding.advice.startswith("`windtunnel run --memory-history train.py` says which modules held it")
    assert "cures" not in session.trace.facts


def keep(kept: str) -> None:
    """Many iterations whose graphs are kept."""
    net = nn.Sequential(nn.Linear(1024, 8192), nn.ReLU(), nn.Linear(8192, 1024)).cuda()
    results: list[torch.Tensor] = []
    loss = torch.zeros((), device="cuda")
    for _ in range(1000):
        result = net(torch.empty(8192, 1024, device="cuda"))
        if kept == "results of each":
            result.square().mean().backward(retain_graph=True)
            results.append(result)
        else:
            loss = loss + result.square().mean()


@pytest.mark.parametrize("kept", ["the loss of many iterations", "results of each"])
def test_a_graph_over_many_iterations_is_the_first_remedy(kept: str) -> None:
    with windtunnel.emulate("V100", no_data=True, memory_history=True) as session:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            keep(kept)
        session.complete()
        finding = next(one for one in session.findings() if one.code == "out-of-memory")
    first, *others = session.trace.facts["cures"]
    assert first["remedy"] == "one-iteration"
    assert first["fits"]
    assert first["saved_bytes"] > 0.7 * first["needed_bytes"]
    assert not any(one["fits"] for one in others)  # it would only take longer
    assert "a graph of one iteration" in finding.advice


def test_a_fraction_of_the_memory_is_what_a_remedy_must_fit() -> None:
    with windtunnel.emulate("V100", no_data=True, memory_history=True) as session:
        torch.cuda.set_per_process_memory_fraction(0.05)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            train(4, 1024, 1 << 13)
        session.complete()
    assert not any(
        one["fits"] for one in session.trace.facts["cures"] if one["saved_bytes"] < 0.1 * one["needed_bytes"]
    )
    assert all(one["out_of_memory"] for one in session.trace.facts["replays"])
