"""The program of docs/from-one-gpu-to-many.md: what the page promises of one machine and of several."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "from-one-gpu-to-many.md").read_text(encoding="utf-8")
PROGRAM = re.search(r"```python\n(# train\.py\n.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture
def program(tmp_path):
    """The page's program in a folder that both machines see, shortened to two epochs."""
    assert "max_epochs=5" in PROGRAM
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.replace("max_epochs=5", "max_epochs=2"), encoding="utf-8")
    return path


def start(program, *options):
    """Start the program with two GPUs."""
    return subprocess.Popen(
        [sys.executable, "-m", "windtunnel", "run", "--gpus", "2xV100", *options, program.name],
        cwd=program.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def losses(processes, nodes=1):
    """The training losses that they print, all together; the reports name the network of several."""
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    assert [f"{nodes} nodes, DGX-1" in text for _, text in outputs] == [nodes > 1] * len(processes)
    return re.findall(r"epoch \d/2  train_loss ([\d.]+)", "".join(text for both in outputs for text in both))


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


# mission 7
@pytest.mark.long
def test_two_machines_train_as_two_gpus_of_one_machine_do(program):
    meeting = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    two = losses([start(program, *meeting, "--nproc-per-node", "1", "--node-rank", rank) for rank in "01"], nodes=2)
    assert (program.parent / "run").is_dir()
    (program.parent / "run").rename(program.parent / "before")
    assert len(two) == 2
    assert two == losses([start(program, "--nproc-per-node", "2")])
