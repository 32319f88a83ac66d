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
from windtunnel.reports.parts import host
from windtunnel.reports.parts.time import RunTiming
from windtunnel.seam.torch.state import looks
from windtunnel.trace.plain import Json

sys.path.insert(0, str(Path(__file__).parent / "host_work"))

import loops
import others
import reported

KINDS = {
    loops: {"data": loops.DATA, "python": loops.PYTHON, "disk": loops.DISK, "gpu": loops.GPU},
    others: others.KINDS,
    reported: reported.KINDS,
}
ALL = os.environ.get("HOST_LOOPS") == "all"
"""`make host-loops` runs every loop, which takes a quarter of an hour; otherwise one of each kind is run."""
LOOPS = [
    (Path(module.__file__), name, kind)
    for module, kinds in KINDS.items()
    for kind in kinds
    for name in [*kinds[kind]][: None if ALL else module is loops]
]
BY_HOST = [loop for loop in LOOPS if loop[2] != "gpu"]
BY_GPU = [loop[:2] for loop in LOOPS if loop[2] == "gpu"]


def report_of(program: Path, name: str, folder: Path) -> Json:
    """The report of a loop's run."""
    path = folder / "loop.json"
    command = [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "A100", "--report", str(path)]
    subprocess.run([*command, str(program), name], check=True, cwd=program.parent)
    found: Json = json.loads(path.read_text())
    return found


@pytest.mark.long
@pytest.mark.parametrize(("program", "name", "kind"), BY_HOST, ids=[loop[1] for loop in BY_HOST])
def test_a_loop_bound_by_the_host_gets_its_kind_and_its_line(
    program: Path, name: str, kind: str, tmp_path: Path
) -> None:
    report = report_of(program, name, tmp_path)
    host = report["host"]
    assert "the GPU waits for" in report["verdict"]
    assert host["waited_share"] > 0.3
    assert host["kind"] == kind
    assert host["file"] == program.name
    assert name in program.read_text().splitlines()[host["line"] - 1].partition("#")[2].split()
    assert f"{program.name}:{host['line']}" in report["verdict"]


@pytest.mark.long
@pytest.mark.parametrize(("program", "name"), BY_GPU, ids=[name for _, name in BY_GPU])
def test_a_loop_bound_by_the_gpu_is_not_said_to_wait_for_the_host(program: Path, name: str, tmp_path: Path) -> None:
    report = report_of(program, name, tmp_path)
    assert "the GPU waits for" not in report["verdict"]
    assert report["host"] is None or report["host"]["waited_share"] < 0.3


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


def test_what_a_hook_does_after_the_step_is_no_data_of_the_next_one() -> None:
    """It ends with the copy of the next batch, as the making of that batch would."""
    with windtunnel.emulate("A100") as session:
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(4, 8)
        for _ in range(8):
            y = x.cuda()
            model(y).sum().backward()
            optimizer.step()
            python()
    assert host.measure(session.trace, RunTiming(8, 300_000), False, 0).kind == "python"


def test_what_is_computed_before_the_copy_is_data() -> None:
    with windtunnel.emulate("A100") as session:
        model = torch.nn.Linear(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(8):
            x = torch.tensor([[float(python() % 7)] * 8] * 4)
            model(x.cuda()).sum().backward()
            optimizer.step()
    assert host.measure(session.trace, RunTiming(8, 300_000), False, 0).kind == "data"


@pytest.mark.long
def test_a_plan_without_data_takes_the_host_s_work_from_a_run_with_data(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "model = torch.nn.Linear(8, 8).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(8):\n"
        "    n = sum(i * i for i in range(100_000))\n"
        "    model(torch.ones(4, 8).cuda()).sum().backward()\n"
        "    optimizer.step()\n"
    )
    run = [sys.executable, "-m", "windtunnel", "run", "--gpus", "A100"]
    subprocess.run([*run, "-q", "--report", "run.json", str(program)], check=True, cwd=tmp_path)
    without = subprocess.run(
        [*run, "--no-data", "--host-from", "run.json", str(program)],
        check=True, cwd=tmp_path, capture_output=True, text=True,
    ).stderr  # fmt: skip
    assert "the GPU waits for" in without
    assert "program.py:5" in without
    assert "not counted" not in without
    refused = subprocess.run([*run, "--host-from", str(program), str(program)], cwd=tmp_path, capture_output=True)
    assert refused.returncode == 2


def python() -> int:
    return sum(index * index for index in range(200_000))


def test_the_saved_trace_is_the_same_whatever_the_host_does(tmp_path: Path) -> None:
    busy, known = saved(tmp_path, python)
    idle, nothing = saved(tmp_path, lambda: None)
    assert busy == idle
    assert known["round_ns"] > 1_000_000 > nothing["round_ns"]


def test_waiting_for_something_counts_as_being_blocked(tmp_path: Path) -> None:
    _, known = saved(tmp_path, lambda: threading.Event().wait(0.02))
    assert known["round_ns"] > 5_000_000  # what it may have waited for a processor is left out
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
        assert looks.SAMPLERS
        child = os.fork()
        if not child:
            os._exit(len(looks.SAMPLERS))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        python()
        x.add_(1)
        assert looks.SAMPLERS
    session.complete()
    assert not looks.SAMPLERS
    assert sys.getswitchinterval() == pytest.approx(0.005)
