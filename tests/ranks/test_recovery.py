"""Trainings that come back from a fault: started again they end with the weights of one that nothing happened to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_programs import ask
from test_programs import server as server

ROOT = Path(__file__).parents[2]
BY_HAND = ROOT / "examples" / "recovery" / "torchrun_training.py"
TRAINER = ROOT / "tests" / "ranks" / "faulty" / "trainer.py"
pytestmark = pytest.mark.long


def weights(answer):
    return [match for text in answer["output"].values() for match in re.findall(r"weights (\w+) (\w+)", text)]


def run(server, program, folder, **more):
    folder.mkdir(exist_ok=True)
    environment = {"CHECKPOINTS": str(folder), **more.pop("environment", {})}
    return ask(server, program, environment=environment, **more)


@pytest.fixture(scope="module")
def plain(server, tmp_path_factory):
    """The weights of trainings without a fault, by program."""
    found = {}
    for program in (BY_HAND, TRAINER):
        answer = run(server, program, tmp_path_factory.mktemp("plain") / "run")
        assert answer["status"] == [0, 0], answer
        found[program] = weights(answer)
    return found


@pytest.mark.parametrize("program", [BY_HAND, TRAINER], ids=["by hand", "Trainer"])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("step", [1, 2, 4])
def test_every_rank_dies_once_at_every_step(server, plain, tmp_path, program, rank, step):
    first = run(server, program, tmp_path / "run", faults=[f"die:rank={rank},step={step}"])
    assert any(first["status"]), first
    again = run(server, program, tmp_path / "run")
    assert (again["status"], weights(again)) == ([0, 0], plain[program]), again


SENTENCES = {
    "oom:rank=0,step=3": "out of memory",
    "die:rank=1,step=3,code=5": "",
    "die:rank=0,step=3,error=lost": "lost",
    "hang:rank=1,step=3": "",
    "xid:rank=1,step=3": "uncorrectable ECC error",
    "nan:rank=0,step=3,operation=addmm": "sentence: the checkpoint step-",
    "disk-full:step=3": "sentence: the checkpoint step-",
    "data-worker-dies:rank=1,step=3": "DataLoader worker",
}


@pytest.mark.parametrize("fault", SENTENCES)
def test_the_trainer_loses_nothing(server, plain, tmp_path, fault):
    workers = {"WORKERS": "1"} if "worker" in fault else {}
    first = run(server, TRAINER, tmp_path / "run", faults=[fault], stuck_after=3.0, environment=workers)
    assert any(first["status"]), first
    assert SENTENCES[fault] in "".join(first["output"].values()), first
    again = run(server, TRAINER, tmp_path / "run")
    assert (again["status"], weights(again)) == ([0, 0], plain[TRAINER]), again


@pytest.mark.parametrize("fault", ["slow:rank=1", "slow-data:rank=0", "bit-flip:rank=0,step=3,operation=addmm,bit=31"])
def test_the_trainer_goes_on(server, plain, tmp_path, fault):
    answer = run(server, TRAINER, tmp_path / "run", faults=[fault])
    assert answer["status"] == [0, 0], answer
    assert {finite for _, finite in weights(answer)} == {"True"}
    assert (weights(answer) == plain[TRAINER]) == (not fault.startswith("bit-flip"))


@pytest.mark.parametrize(
    "fault",
    [
        "die:rank=1,step=3,restart=0",
        pytest.param("die:rank=0,step=3,restart=0,at=transfer", marks=pytest.mark.weekly),
    ],
)
def test_torchrun_starts_the_ranks_again(plain, tmp_path, fault):
    command = [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "2xV100", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "--max-restarts", "1", "--fault", fault, str(BY_HAND)],
        env=os.environ | {"CHECKPOINTS": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert re.findall(r"weights (\w+) (True|False)", done.stdout) == plain[BY_HAND], done.stderr
