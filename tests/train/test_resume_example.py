"""The example that dies and goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
"""Each starts programs of its own."""

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_resume.py"


def run(*arguments: str, emulated: bool = True) -> subprocess.CompletedProcess:
    start = ["-m", "windtunnel", "run", "--gpus", "V100"] if emulated else []
    command = [sys.executable, *start, str(EXAMPLE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


# mission 108, 130
def test_a_killed_example_goes_on_to_the_same_loss(tmp_path):
    whole = run("--folder", str(tmp_path / "whole"), "--epochs", "4")
    killed = run("--folder", str(tmp_path / "killed"), "--epochs", "4", "--die", "17", emulated=False)
    resumed = run("--folder", str(tmp_path / "killed"), "--epochs", "4", emulated=False)
    alone = run("--folder", str(tmp_path / "alone"), "--epochs", "4", emulated=False)
    assert killed.returncode == -signal.SIGKILL
    began, result = alone.stdout.splitlines()
    assert began == "no checkpoint yet: starting with step 1"
    assert resumed.stdout.splitlines() == ["resumed after step 15, in epoch 3 of 4", result]
    assert whole.stdout.splitlines()[1].startswith("4 epochs, 28 steps, loss ")
