"""A short part of `make determinism`: threads, workers of a loader and ranks give the same bytes twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
"""It starts programs of its own."""

TOOL = Path(__file__).resolve().parents[2] / "tools" / "behaviour"


def test_threads_loaders_and_ranks_repeat() -> None:
    chosen = [word for name in ("threads_apart", "loader_workers", "ranks_train") for word in ("--only", name)]
    done = subprocess.run([sys.executable, str(TOOL), "twice", *chosen], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("3 of 3 programs give the same output, traces and findings twice\n")
