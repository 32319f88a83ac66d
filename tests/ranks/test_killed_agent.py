"""torchrun's agent is killed: its ranks end with it, which nobody else would end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="a process learns of its parent's end on Linux alone"),
]

PROGRAM = """
import os, subprocess, sys, time
import torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3)"])
note = f"{sys.argv[1]}/{os.environ['RANK']}"
with open(note + ".new", "w") as file:
    file.write(f"{os.getpid()} {os.getppid()}")
os.rename(note + ".new", note)
while True:
    dist.barrier()
    time.sleep(0.01)
"""


def lives(process: int) -> bool:
    """Whether a process is there, and no zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][:1] not in ("Z", "X")
    except OSError:
        return False


def until(true, seconds):
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


def test_the_ranks_of_a_killed_agent_end(tmp_path):
    program, notes = tmp_path / "program.py", tmp_path / "notes"
    program.write_text(PROGRAM)
    notes.mkdir()
    command = [sys.executable, "-m", "windtunnel", "run", "--gpus", "2xA100", "--nproc-per-node", "2", program, notes]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
        assert until(lambda: {path.name for path in notes.iterdir()} == {"0", "1"}, 60)
        (first, agent), (second, _) = (map(int, (notes / rank).read_text().split()) for rank in "01")
        try:
            assert lives(first)
            assert lives(second)
            os.kill(agent, signal.SIGKILL)
            assert until(lambda: not lives(first) and not lives(second), 10)
            assert run.wait(30) == 128 + signal.SIGKILL
        finally:
            for rank in filter(lives, (first, second)):
                os.kill(rank, signal.SIGKILL)
            run.kill()
