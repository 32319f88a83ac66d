"""Clusters that few processes play beside the same ranks as processes: equal to the nanosecond and byte."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VALID = (
    "eight_ranks_valid",
    "fully_sharded_valid",
    "tensor_parallel_valid",
    "batch_ripple_valid",
    "replicas_of_a_mesh_seeded_valid",
)
UNLIKE = ("one in the middle", "one message", "objects", "counted in a store")
UNLIKE_WEEKLY = ("odd ranks", "layers dropped by chance")
"""By a condition on the rank, and by numbers of each rank's own, as tests/cli/test_cluster_command.py has them."""


def run(*words):
    """What a program of tools/folding prints, a line each that begins with its verdict."""
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=900)
    return done.stdout, done


@pytest.mark.long
def test_played_ranks_do_what_real_ones_do():
    text, done = run(
        "tools.folding.exact", "--gpu", "V100", "--ranks", "4", *(f"tests/ranks/programs/{name}.py" for name in VALID)
    )
    assert done.returncode == 0, text + done.stderr[-2000:]
    assert text.count("equal ") == len(VALID)
    assert "stands for" in text


@pytest.mark.long
@pytest.mark.parametrize("names", [UNLIKE, pytest.param(UNLIKE_WEEKLY, marks=pytest.mark.weekly)])
def test_ranks_that_differ_are_found_and_played(names):
    text, done = run("tools.folding.unlike", *names)
    assert done.returncode == 0, text + done.stderr[-2000:]
    assert text.count("right ") == len(names)


@pytest.mark.long
@pytest.mark.parametrize("runs", ["2", pytest.param("5", marks=pytest.mark.weekly)])
def test_a_rank_that_does_not_run_for_seconds_changes_nothing(runs):
    text, done = run("tools.folding.disturbed", "--runs", runs, "tests/ranks/programs/tensor_parallel_valid.py")
    assert done.returncode == 0, text + done.stderr[-2000:]
    assert text.count("equal ") == 1
