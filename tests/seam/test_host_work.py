"""The host's own work, measured beside the modelled clock: its verdict and its line; a trace knows nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import windtunnel
from windtunnel.reports import text
from windtunnel.seam.torch.state import host_work
from windtunnel.trace.plain import Json

sys.path.insert(0, str(Path(__file__).parent / "host_work"))

import loops

PROGRAM = Path(loops.__file__).resolve()
KINDS = {name: kind for kind in ("DATA", "PYTHON", "DISK") for name in getattr(loops, kind)}
LINES = PROGRAM.read_text().splitlines()


def report_of(name: str, folder: Path) -> dict:
    """The report of a loop, as JSON."""
    path = folder / "report.json"
    command = [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "A100", "--report", str(path)]
    subprocess.run([*command, str(PROGRAM), name], check=True, cwd=PROGRAM.parent)
    return json.loads(path.read_text())


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_a_loop_bound_by_the_host_gets_its_kind_and_its_line(name: str, tmp_path: Path) -> None:
    report = report_of(name, tmp_path)
    host = report["host"]
    assert "the GPU waits for" in report["verdict"]
    assert host["waited_share"] > 0.5
    assert host["kind"] == KINDS[name].lower()
    assert host["file"] == "loops.py"
    assert name in LINES[host["line"] - 1].partition("#")[2].split()
    assert f"loops.py:{host['line']}" in report["verdict"]


@pytest.mark.long
@pytest.mark.parametrize("name", loops.GPU)
def test_a_loop_bound_by_the_gpu_is_not_said_to_wait_for_the_host(name: str, tmp_path: Path) -> None:
    report = report_of(name, tmp_path)
    assert "waits for" not in report["verdict"]


def saved(folder: Path, work: Callable[[], object]) -> tuple[bytes, Json]:
    """The saved trace of eight steps with `work` in each, and the facts of this machine."""
    with windtunnel.emulate("A100", seed=0) as session:
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(8):
            work()
            model(torch.ones(4, 8).cuda()).sum().backward()
            optimizer.step()
    session.trace.facts["program"] = ""
    session.trace.save(folder / "a.trace")
    return (folder / "a.trace").read_bytes(), session.trace.facts["host_work"]


def python() -> int:
    return sum(index * index for index in range(50_000))


def test_the_saved_trace_is_the_same_whatever_the_host_does(tmp_path: Path) -> None:
    busy, known = saved(tmp_path, python)
    idle, nothing = saved(tmp_path, lambda: None)
    assert busy == idle
    assert known["round_ns"] > 1_000_000 > nothing["round_ns"]


def test_waiting_for_something_counts_as_being_blocked(tmp_path: Path) -> None:
    _, known = saved(tmp_path, lambda: threading.Event().wait(0.02))
    assert known["round_ns"] > 10_000_000
    assert known["blocked_share"] > 0.6


def test_pytorch_s_own_python_is_not_the_host_s(tmp_path: Path) -> None:
    """An optimizer's step and a backward pass are PyTorch's, and what frees the emulation's memory is no one's."""

    class Slow(torch.optim.SGD):
        def step(self, closure=None):
            python()
            return super().step(closure)

    with windtunnel.emulate("A100") as session:
        weight = torch.ones(1000, 1000, device="cuda", requires_grad=True)
        optimizer = Slow([weight], lr=0.1)
        for _ in range(8):
            (weight * 2).relu().sum().backward()
            optimizer.step()
    assert session.trace.facts["host_work"]["round_ns"] < 1_000_000


def test_without_data_the_first_line_says_that_it_is_not_counted() -> None:
    with windtunnel.emulate("A100", no_data=True) as session:
        torch.ones(4, device="cuda").add_(1)
    assert "host_work" not in session.trace.facts
    verdict = text.render(session.trace, session.findings()).splitlines()[0]
    assert "host work is not counted without data" in verdict


def test_a_fork_leaves_no_thread_behind_and_the_looks_go_on() -> None:
    with windtunnel.emulate("A100") as session:
        x = torch.ones(4, device="cuda")
        for _ in range(3):
            python()
            x.add_(1)
        assert host_work.SAMPLERS
        child = os.fork()
        if not child:
            os._exit(len(host_work.SAMPLERS))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        python()
        x.add_(1)
        assert host_work.SAMPLERS
    session.complete()
    assert not host_work.SAMPLERS
    assert sys.getswitchinterval() == pytest.approx(0.005)
