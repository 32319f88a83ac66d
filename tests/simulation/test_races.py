"""A short part of `make race-oracle`: what is said to race does, and what races is said to."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tools import ROOT

pytestmark = pytest.mark.long
"""It starts a program of its own."""


@pytest.mark.parametrize(
    "words",
    [
        "--programs 60 --seed 11",
        pytest.param("--programs 60 --seed 12", marks=pytest.mark.weekly),
        "--seed 27 --one 582",
        "--seed 27 --one 438",
    ],
)
def test_random_programs_race_as_the_oracle_says(words: str) -> None:
    """In program 582 a stream waits for another after a tensor recorded for it has died.

    In 438 memory is handed on after a write that races with reads, which is reported: mending it mends the reuse too.
    """
    command = [sys.executable, "-m", "tools.races", *words.split()]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("0 programs where the two differ\n")
