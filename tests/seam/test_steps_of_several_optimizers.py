"""A step of the program: what ends it where several optimizers step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import windtunnel
from windtunnel.trace.operation import Kind
from windtunnel.trace.trace import KIND, VALUE

STEPS = 6


def steps_of(loop: Callable[[], None]) -> int:
    """How many steps the trace of a loop has."""
    with windtunnel.emulate("A100") as session:
        loop()
    return sum(kind == Kind.STEP for kind in session.trace.rows.column(0))


def nets(rounds: dict[str, int]) -> None:
    """Each round takes so many steps of each optimizer, in this order."""
    layers = {name: nn.Linear(4, 4).cuda() for name in rounds}
    optimizers = {name: torch.optim.SGD(layer.parameters(), lr=0.01) for name, layer in layers.items()}
    for _ in range(STEPS):
        for name, times in rounds.items():
            for _ in range(times):
                layers[name](torch.ones(2, 4, device="cuda")).sum().backward()
                optimizers[name].step()


@pytest.mark.parametrize(
    ("rounds", "steps"),
    [
        ({"net": 1}, STEPS),
        ({"encoder": 1, "decoder": 1}, STEPS),
        ({"encoder": 1, "attention": 1, "decoder": 1}, STEPS),
        ({"critic": 5, "generator": 1}, 5 * STEPS),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_steps_are_those_of_the_first_optimizer(rounds: dict[str, int], steps: int) -> None:
    assert steps_of(lambda: nets(rounds)) == steps


def test_another_optimizer_takes_over_with_its_second_step() -> None:
    layer = nn.Linear(4, 4)

    def loop() -> None:
        net = layer.cuda()
        for factory in (torch.optim.SGD, torch.optim.Adam):
            optimizer = factory(net.parameters(), lr=0.01)
            warm_up.append(optimizer)
            for _ in range(STEPS):
                net(torch.ones(2, 4, device="cuda")).sum().backward()
                optimizer.step()

    warm_up: list[torch.optim.Optimizer] = []  # the first one stays alive
    assert steps_of(loop) == 2 * STEPS - 1


def test_the_second_optimizer_is_noted_with_its_own_kernels() -> None:
    with windtunnel.emulate("A100") as session:
        layers = [nn.Linear(4, 4).cuda() for _ in range(2)]
        optimizers = [torch.optim.Adam(layer.parameters(), foreach=False) for layer in layers]
        for _ in range(STEPS):
            layers[1](layers[0](torch.ones(2, 4, device="cuda"))).sum().backward()
            optimizers[0].step()
            optimizers[1].step()
    rows = [row for row in session.trace.rows if row[KIND] == Kind.NOTE]
    every = [session.trace.notes[row[VALUE]] for row in rows]
    notes = [dict(note.detail) for note in every if note.code == "unfused-optimizer"]
    assert len(notes) == 2 * STEPS
    assert notes[-1]["kernels"] == notes[-2]["kernels"] > 4
