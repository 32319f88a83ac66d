"""What is recorded of a process: on a machine without GPUs the host's part, which is the same code."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from windtunnel import checks, launch
from windtunnel.cli import run
from windtunnel.errors import FileFormatError
from windtunnel.foreign import from_pickle
from windtunnel.measure import present, snapshot
from windtunnel.reports import text

pytestmark = pytest.mark.long
"""Each starts programs of its own."""

PROGRAM = """
import torch
from windtunnel.measure import record
record.start({folder!r})
torch.ones(3).sum()
"""


def test_a_recorded_process_leaves_its_profile(tmp_path):
    launch.prepare(tmp_path)
    code = PROGRAM.format(folder=str(tmp_path))
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    (profile,) = tmp_path.glob("*.kineto.json.gz")
    assert profile.stat().st_size > 100
    assert launch.collect(tmp_path).traces == []  # nothing happened on a GPU
    assert launch.collect(tmp_path).lost == []


def test_under_measurement_a_program_without_cuda_is_left_alone(tmp_path):
    variables = launch.measuring_environment(tmp_path, os.environ)
    code = "import torch; print(torch.cuda.is_available(), torch.ones(2).sum().item())"
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == "False 2.0\n"
    assert list(tmp_path.iterdir()) == []


def test_hidden_gpus_are_none(monkeypatch):
    monkeypatch.setattr(present, "real_gpus", lambda: 4)
    assert present.visible_gpus() == 4
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert present.visible_gpus() == 0


def frames(line: int) -> list[dict[str, object]]:
    return [
        {"filename": "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", "line": 125, "name": "forward"},
        {"filename": "/home/me/train.py", "line": line, "name": "step"},
    ]


@pytest.fixture
def recorded(tmp_path) -> Path:
    events = [
        {"action": "segment_alloc", "addr": 1 << 32, "size": 2 << 20, "stream": 0, "time_us": 10, "frames": []},
        {"action": "alloc", "addr": 1 << 32, "size": 1024, "stream": 0, "time_us": 11, "frames": frames(7)},
        {"action": "alloc", "addr": (1 << 32) + 1024, "size": 512, "stream": 0, "time_us": 12, "frames": frames(9)},
        {"action": "free_requested", "addr": 1 << 32, "size": 1024, "stream": 0, "time_us": 13, "frames": frames(8)},
        {"action": "free_completed", "addr": 1 << 32, "size": 1024, "stream": 0, "time_us": 13, "frames": frames(8)},
    ]
    path = tmp_path / "run.snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}))
    return path


def test_a_snapshot_of_a_real_gpu_tells_who_held_the_peak(recorded):
    trace = snapshot.load(recorded)
    assert [(action.action, action.site.line) for action in trace.memory_actions()][1:3] == [("alloc", 7), ("alloc", 9)]
    assert trace.facts["devices"] == [{"peak_allocated_bytes": 1536, "peak_reserved_bytes": 2 << 20}]
    shown = text.render(trace, checks.run(trace), width=500)
    assert "memory at its peak: 1.50 KiB allocated, 2.00 MiB reserved" in shown
    assert "train.py:7" in shown
    assert shown.splitlines()[-1] == "a snapshot holds no work, so only its memory is judged"


class Evil:
    def __reduce__(self):
        return os.system, ("true",)


def test_a_pickle_that_wants_to_run_something_is_refused():
    with pytest.raises(FileFormatError, match=r"asks for posix\.system"):
        from_pickle(pickle.dumps({"segments": Evil()}), "evil.pickle")


@pytest.fixture
def a_machine_with_gpus(monkeypatch, tmp_path):
    """NVML counts two GPUs; CUDA finds none, so nothing runs on them."""
    monkeypatch.setattr(run, "visible_gpus", lambda: 2)
    program = tmp_path / "program.py"
    program.write_text("import torch\nprint(torch.cuda.is_available())\n", "utf-8")
    return program


def test_run_without_gpus_measures_where_there_are_some(a_machine_with_gpus, capfd):
    done = CliRunner().invoke(run.command, [str(a_machine_with_gpus)], standalone_mode=False)
    assert done.return_value == 0
    assert capfd.readouterr().out == "False\n"
    assert "measuring on 2 real GPUs; --gpus emulates instead" in done.stderr


def test_a_gate_that_a_measured_run_cannot_decide_is_refused_first(a_machine_with_gpus):
    arguments = ["--fail-on", "stale-read", str(a_machine_with_gpus)]
    done = CliRunner().invoke(run.command, arguments, standalone_mode=False)
    assert "stale-read is not decidable from a run that is measured" in str(done.exception)


def test_gpus_that_are_named_are_emulated_there_too(a_machine_with_gpus, capfd):
    arguments = ["-q", "--gpus", "V100", str(a_machine_with_gpus)]
    assert CliRunner().invoke(run.command, arguments, standalone_mode=False).return_value == 0
    assert capfd.readouterr().out == "True\n"
