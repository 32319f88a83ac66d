"""A compiled graph that follows its recipe does what its wrapper does: the same rows, times, memory and values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import windtunnel
from windtunnel.seam.torch.compiled import recipes

STEPS = 24

Observed = tuple[list[tuple[int, ...]], list[tuple[int, ...]], list[float]]
"""Rows, memory after each step (allocated, reserved, peak), losses."""


def perceptron() -> tuple[nn.Module, Tensor]:
    """Linear layers with dropout, whose seeds a graph draws itself."""
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Dropout(0.2), nn.Linear(96, 64)), torch.randn(32, 64)


def convolutions() -> tuple[nn.Module, Tensor]:
    """Convolutions with batch norm, which take workspaces and write to buffers."""
    layers = (nn.Sequential(nn.Conv2d(c, 16, 3), nn.BatchNorm2d(16), nn.ReLU()) for c in (3, 16))
    return nn.Sequential(*layers), torch.randn(2, 3, 12, 12)


class TwoResults(nn.Module):
    """Its second result is one that a loss may leave out: autograd makes the gradient of nothing then."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 24)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Two results."""
        found = self.first(x).relu()
        return found, self.second(found)


def two_results() -> tuple[nn.Module, Tensor]:
    """A module with a result too many."""
    return TwoResults(), torch.randn(32, 16)


def trained(make: Callable[[], tuple[nn.Module, Tensor]], sizes: int) -> Observed:
    """Train on batches of so many sizes, keeping what some steps gave, and reading losses at the end alone."""
    with windtunnel.emulate("A100") as session:
        torch.manual_seed(0)
        module, x = make()
        module, x = module.cuda(), x.cuda()
        compiled = torch.compile(module)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        losses, kept, memory = [], [], []
        for step in range(STEPS * sizes):
            optimizer.zero_grad()
            given = x[step % sizes :]
            results = compiled(given.flip(0) if step % 3 else given)
            out = results[0] if isinstance(results, tuple) else results
            if step % 4 == 1:
                kept.append(out)
            loss = mse_loss(out, torch.zeros_like(out))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            statistics = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated()
            memory.append(statistics)
            torch.cuda.reset_peak_memory_stats()
        found = torch.stack(losses).tolist()
        return list(session.trace.rows), memory, found


@pytest.mark.parametrize(("make", "sizes"), [(perceptron, 1), (perceptron, 2), (convolutions, 1), (two_results, 1)])
def test_a_recipe_does_what_the_wrapper_does(
    make: Callable[[], tuple[nn.Module, Tensor]], sizes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = []
    follow = recipes.Recipe.follow

    def counted(self: recipes.Recipe, *args: object) -> list[recipes.ResultPlace | object]:
        followed.append(self)
        return follow(self, *args)  # type: ignore[arg-type]  # those that it was called with

    monkeypatch.setattr(recipes.Recipe, "follow", counted)
    with_recipes = trained(make, sizes)
    assert len(followed) > STEPS
    monkeypatch.setattr(recipes, "TRIES", -1)
    followed.clear()
    without = trained(make, sizes)
    assert not followed
    assert with_recipes == without


def test_a_call_of_another_form_has_a_recipe_of_its_own() -> None:
    with windtunnel.emulate("A100"):
        compiled = torch.compile(lambda x: (x * 2).sum(0), dynamic=False)
        for _ in range(100):
            for x in (torch.ones(4, 8, device="cuda"), torch.ones(8, 4, device="cuda").t()):
                assert compiled(x).tolist() == [8.0] * 8


def test_an_operator_of_the_programs_own_has_no_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    @torch.library.custom_op("recipes::counted", mutates_args=())
    def counted(x: Tensor) -> Tensor:
        calls.append(1)
        return x.clone()

    counted.register_fake(torch.empty_like)
    kept: list[object] = []
    monkeypatch.setattr(recipes.Recipes, "keep", lambda self, form, recipe: kept.append(recipe))
    with windtunnel.emulate("A100"):
        compiled = torch.compile(lambda x: counted(x + 1) * 2)
        x = torch.ones(8, device="cuda")
        for _ in range(150):
            out = compiled(x)
        assert out.tolist() == [4.0] * 8
    assert not any(kept)
