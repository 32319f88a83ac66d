"""A few of the random functions of `make differential-compiled`, and what it would say of a wrong result."""

from __future__ import annotations

import pytest
import torch
from tools.differential import compiled as differential

import windtunnel


@pytest.mark.parametrize("seed", [0, 5, 23])
def test_a_compiled_function_is_the_uncompiled_one(seed: int) -> None:
    assert differential.compare(seed) == []


def test_functions_repeat_and_differ_from_seed_to_seed() -> None:
    assert differential.made(3) == differential.made(3)
    assert len({differential.made(seed).steps for seed in range(50)}) == 50
    assert {differential.made(seed).differentiates for seed in range(50)} == {False, True}


def test_differences_are_told() -> None:
    with windtunnel.emulate("A100"):
        x = torch.ones(3, 2, device="cuda")
        wanted = differential.CallOutcome([x, x], [], [])
        found = differential.CallOutcome([x + 1, x.t().contiguous().t()], [], [x])
        told = list(differential.differences(wanted, found))
    assert told[0] == "results 0: values differ by 1"
    assert "(1, 3)" in told[1]
    assert told[2] == "1 gradients instead of 0"
