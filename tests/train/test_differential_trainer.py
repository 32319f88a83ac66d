"""A short, seeded part of `make differential`: the Trainer agrees with a hand-written loop, or says why not."""

from __future__ import annotations

import pytest
from tools.differential.trainer import compare, plain, ranks, space

SEED = 11


def differing(*counts: tuple[str, int]) -> list[str]:
    names = [ranks.Name(strategy, number) for strategy, count in counts for number in range(count)]
    found = dict(ranks.verdicts(SEED, names))
    assert len(found) == len(names)
    assert sum(verdict.kind == "agrees" for verdict in found.values()) > len(names) / 2
    return [
        "\n".join([f"make differential ARGS='--seed {SEED} --one {name}'", *verdict.lines])
        for name, verdict in found.items()
        if verdict.kind == "differs"
    ]


@pytest.mark.parametrize(
    ("strategy", "count"),
    [("cpu", 50), pytest.param("gpu", 8, marks=pytest.mark.long), pytest.param("dp", 6, marks=pytest.mark.long)],
)
def test_one_process_agrees_with_a_hand_written_loop(strategy, count):
    assert differing((strategy, count)) == []


@pytest.mark.weekly
def test_two_processes_agree_with_a_hand_written_loop():
    assert differing(("ddp", 12), ("fsdp", 12)) == []


def test_a_configuration_is_the_same_on_every_machine():
    assert space.draw("cpu", 3, SEED) == space.draw("cpu", 3, SEED)
    assert space.draw("cpu", 3, SEED) != space.draw("cpu", 4, SEED)


def test_a_difference_is_found():
    """The comparison sees one changed number."""
    one, two = (plain.train(space.Config(seed=3, metrics=("mae",))) for _ in range(2))
    assert compare.differences(one, two, 2e-4) == []
    two.history[1]["train_mae"] += 1e-3
    two.weights[0][0, 0] += 1e-2
    assert [line.split(":")[0] for line in compare.differences(one, two, 2e-4)] == [
        "weights[0]",
        "history[1].train_mae",
    ]
