"""Faults on purpose in a training of two ranks: the others meet what they would, and the finding names the rank."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_programs import ask
from test_programs import server as server

TRAINING = Path(__file__).parent / "faulty" / "training.py"
pytestmark = pytest.mark.long


def weights(answer):
    """What each rank says of its weights, for those that came to the end."""
    return [match for text in answer["output"].values() for match in re.findall(r"weights (\w+) (\w+)", text)]


@pytest.fixture(scope="module")
def plain(server):
    """The training without a fault."""
    answer = ask(server, TRAINING)
    assert answer["status"] == [0, 0], answer
    return weights(answer)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("die:rank=1,step=3", "rank-ended"),
        ("die:rank=0,step=2,code=7", "rank-ended"),
        ("die:rank=1,step=4,error=lost", "rank-ended"),
        ("die:rank=1,step=3,operation=all_reduce", "rank-ended"),
        ("die:rank=1,step=3,at=transfer", "rank-ended"),
        ("die:rank=0,step=4,operation=all_reduce,at=transfer,code=5", "rank-ended"),
        ("oom:rank=0,step=5", "rank-ended"),
        ("xid:rank=1,step=2", "rank-ended"),
    ],
)
def test_a_rank_that_fails_is_the_finding(server, fault, code):
    answer = ask(server, TRAINING, faults=[fault])
    rank = int(re.search(r"rank=(\d)", fault)[1])
    (found,) = [one for one in answer["findings"] if one[0] != "out-of-memory"]
    assert found[0] == code, answer
    assert f"rank {rank} " in found[3]
    assert weights(answer) == []


def test_a_rank_that_hangs_is_the_finding(server):
    answer = ask(server, TRAINING, faults=["hang:rank=1,step=3"], stuck_after=2.0)
    assert [one[0] for one in answer["findings"]] == ["rank-stuck"], answer
    assert "training.py" in answer["findings"][0][1]


def test_a_slow_rank_is_no_finding(server, plain):
    answer = ask(server, TRAINING, faults=["slow:rank=1,factor=5"])
    assert (answer["status"], answer["findings"]) == ([0, 0], [])
    assert weights(answer) == plain


def test_what_a_slow_rank_costs_is_told(server):
    answer = ask(server, TRAINING, faults=["slow:rank=1,factor=20000"])
    assert (answer["status"], answer["findings"]) == ([0, 0], [])
    assert any("rank 0 waited" in text and "for rank 1, whose GPU was still at work" in text
               for text in answer["remarks"]), answer  # fmt: skip
    assert not any(text.startswith("rank 1 waited") for text in answer["remarks"])


def test_a_nan_of_one_rank_reaches_all(server, plain):
    answer = ask(server, TRAINING, faults=["nan:rank=1,step=4,operation=addmm"])
    assert (answer["status"], answer["findings"]) == ([0, 0], [])
    assert {finite for _, finite in weights(answer)} == {"False"}


def test_the_same_flip_gives_the_same_weights(server, plain):
    once, again = (ask(server, TRAINING, faults=["bit-flip:rank=0,step=2,operation=addmm"]) for _ in range(2))
    assert weights(once) == weights(again) != plain
