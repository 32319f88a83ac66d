"""Functional collectives on emulated GPUs give what plain PyTorch gives over gloo, with data and in shape without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAM = HERE / "functional_collectives.py"
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def told():
    """What each rank tells: of plain PyTorch, of NCCL alone, of two backends, and without data."""
    ways = {
        "plain": {"plain": True, "environment": {"PLAIN": "1"}},
        "nccl": {"environment": {"BACKEND": "nccl"}},
        "two backends": {"environment": {"BACKEND": "cpu:gloo,cuda:nccl"}},
        "no data": {"environment": {"BACKEND": "nccl", "NO_DATA": "1"}, "no_data": True},
    }
    requests = [json.dumps({"program": str(PROGRAM), "ranks": 2, **way}) for way in ways.values()]
    done = subprocess.run(
        [sys.executable, str(HERE / "rank_server.py")],
        input="\n".join(requests) + "\n", capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    answers = dict(zip(ways, map(json.loads, done.stdout.splitlines()), strict=True))
    for way, answer in answers.items():
        assert answer["status"] == [0, 0], (way, answer)
        assert not [finding for finding in answer["findings"] if finding[0].startswith("collective")], answer
    return {way: [last_line(answer["output"][f"{rank}.out"]) for rank in (0, 1)] for way, answer in answers.items()}


def last_line(output):
    return json.loads(output.strip().splitlines()[-1])


def shapes(value):
    """The shapes alone of what a rank tells."""
    if (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], list)
        and all(isinstance(one, int) for one in value[0])
    ):
        return value[0]
    return [shapes(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("way", ["nccl", "two backends"])
def test_values_and_gradients_are_those_of_plain_pytorch(told, way, rank):
    expected = told["plain"][rank]
    assert len(expected) == 24
    for name, value in expected.items():
        assert told[way][rank][name] == value, name


@pytest.mark.parametrize("rank", [0, 1])
def test_shapes_without_data_are_those_with_data(told, rank):
    for name, value in told["plain"][rank].items():
        assert shapes(told["no data"][rank][name]) == shapes(value), name
