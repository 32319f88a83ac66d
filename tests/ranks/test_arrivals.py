"""A rank that waits in `init_process_group` for one that died on its way: it is told, and does not wait for hours."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from windtunnel import arrivals

PROGRAM = Path(__file__).parent / "faulty" / "one_task_each.py"


@pytest.fixture
def rank(tmp_path, monkeypatch):
    """An expected rank of a job of its own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("MASTER_PORT", "29511")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(sys, "exit", sys.exit)
    found = arrivals.Arrival()
    found.begin()
    return found


def died(rank, number, text=""):
    """Another rank's process has ended on its way."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    Path(rank.folder, str(number)).write_text(f"{process.pid}\n{text}", "utf-8")


def test_a_rank_that_ended_by_an_exception_is_gone(rank):
    died(rank, 3, "exception ValueError: no data")
    assert rank.gone() == [(3, "exception", "ValueError: no data")]


def test_a_rank_of_which_nothing_is_known_was_killed(rank):
    died(rank, 1)
    assert rank.gone() == [(1, "killed", "")]


def test_a_rank_that_joined_is_expected_no_more(rank, tmp_path):
    assert list(tmp_path.rglob("0"))
    rank.joined()
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_ends_in_order_leaves_nothing(rank, tmp_path):
    rank.ended(None)
    assert list(tmp_path.iterdir()) == []


def test_an_exit_code_is_remembered(rank):
    with pytest.raises(SystemExit):
        sys.exit(3)
    rank.ended(None)
    assert Path(rank.path).read_text("utf-8").endswith("exit exit code 3")


def test_a_process_that_is_no_rank_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name in arrivals.RANKS:
        monkeypatch.delenv(name, raising=False)
    arrivals.Arrival().begin()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "rank 1 ended by FileNotFoundError: no data on this node"),
        ("exits", "rank 1 ended with exit code 1: no data on this node"),
        ("dies", "rank 1 was killed"),
    ],
)
def test_who_waits_is_told(how, said, tmp_path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "windtunnel", "run", "--gpus", "2xA100", str(PROGRAM), how, str(port)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    report = " ".join(done.stderr.split())
    assert done.returncode == 64, done.stderr
    assert f"rank-ended ({PROGRAM.name}:30)" in report
    assert said in report
    assert time.monotonic() - began < 60
