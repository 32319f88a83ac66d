"""A short part of `make race-oracle`: what is said to race does, and what races is said to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
"""It starts a program of its own."""

TOOL = Path(__file__).resolve().parents[2] / "tools" / "races"


@pytest.mark.parametrize("words", ["--programs 60 --seed 11", "--programs 60 --seed 12", "--seed 27 --one 582"])
def test_random_programs_race_as_the_oracle_says(words: str) -> None:
    """The last one makes a stream wait for another after a tensor recorded for it has died."""
    command = [sys.executable, str(TOOL), *words.split()]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("0 programs where the two differ\n")
