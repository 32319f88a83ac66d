"""The examples run as they are on emulated GPUs, and on the CPU when they are told to."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
"""Each starts programs of its own."""

EXAMPLES = Path(__file__).parents[2] / "examples"
READ_EVENTS = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
print([scalar.step for scalar in EventAccumulator("logs").Reload().Scalars("train_loss_paral")])
"""
EMULATED = [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "2xV100"]


def run(folder, *command):
    """What a command printed on stdout; it must end well."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# mission 110, 116, 117, 119
def test_housing_data_parallel_splits_batches_and_logs_every_epoch(tmp_path):
    stdout = run(tmp_path, *EMULATED, str(EXAMPLES / "housing_data_parallel.py"), "--epochs", "3")
    assert stdout.startswith("Let's use 2 GPUs\nDataParallel(\n  (module): Net1(\n    (layer1): Sequential(\n")
    half = "\tIn Model: input size torch.Size([64, 13]) output size torch.Size([64, 1])\n"
    whole = "Outside: input size torch.Size([128, 13]) output_size torch.Size([128, 1])\n"
    epoch = (2 * half + whole) * 3 + (2 * half + whole).replace("64", "10").replace("128", "20")
    assert stdout.endswith(")\n" + 3 * epoch)
    assert run(tmp_path, sys.executable, "-c", READ_EVENTS) == "[0, 1, 2]\n"


# mission 91
def test_housing_data_parallel_runs_on_the_cpu_when_told_to(tmp_path):
    script = str(EXAMPLES / "housing_data_parallel.py")
    emulated = run(tmp_path, *EMULATED, script, "--epochs", "1", "--disable-cuda")
    plain = run(tmp_path, sys.executable, script, "--epochs", "1")
    assert emulated == plain
    assert plain.startswith("Net1(\n")


def test_character_gpt_learns_on_an_emulated_gpu(tmp_path):
    stdout = run(tmp_path, *EMULATED, str(EXAMPLES / "character_gpt.py"), "--steps", "20")
    first, last = map(float, re.search(r"character: ([\d.]+) at first, ([\d.]+) after 20 steps", stdout).groups())
    assert last < first - 0.5


# mission 101
def test_shapes_cnn_learns_on_an_emulated_gpu(tmp_path):
    stdout = run(tmp_path, *EMULATED, str(EXAMPLES / "shapes_cnn.py"), "--epochs", "3")
    losses = [float(loss) for loss in re.findall(r"training loss ([\d.]+)", stdout)]
    assert len(losses) == 3
    assert losses[2] < losses[0] / 2


# mission 123
@pytest.mark.parametrize(
    "launcher", [["--nproc-per-node", "2"], ["--no-python", "torchrun", "--standalone", "--nproc-per-node", "2"]]
)
def test_ddp_trains_the_same_model_in_two_processes(launcher, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    stdout = run(tmp_path, *EMULATED, *launcher, str(EXAMPLES / "housing_ddp.py"), "--epochs", "5")
    errors = [float(error) for error in re.findall(r"2 processes, mean squared error ([\d.]+)", stdout)]
    assert len(errors) == 2
    assert errors[1] < errors[0]
