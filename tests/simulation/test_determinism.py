"""A short part of `make determinism`: threads, workers of a loader and ranks give the same bytes twice."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools import ROOT

pytestmark = pytest.mark.long
"""It starts programs of its own."""

TOOL = (sys.executable, "-m", "tools.behaviour")


def test_threads_loaders_and_ranks_repeat() -> None:
    chosen = [word for name in ("threads_apart", "loader_workers", "ranks_train") for word in ("--only", name)]
    done = subprocess.run([*TOOL, "twice", *chosen], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("3 of 3 programs give the same output, traces and findings twice\n")


def test_a_run_waits_until_nobody_else_runs_in_the_shared_folder(tmp_path: Path) -> None:
    """Another checkout's programs of the same names must not come in between: `whole-step-graph` once differed so."""
    environment = dict(os.environ, TMPDIR=str(tmp_path))
    shared = tmp_path / "windtunnel-behaviour"
    shared.mkdir()
    command = [*TOOL, "record", str(tmp_path / "record"), "--only", "threads_apart"]
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            child.communicate(timeout=5)
        assert not list(shared.glob("*.py"))
    assert child.communicate()[0].startswith("1 programs recorded")
