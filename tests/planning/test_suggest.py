"""What else would help, from rehearsals that a pool computes; and the changes themselves, on real optimizers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from windtunnel import planning
from windtunnel.launch import Program
from windtunnel.planning.cache import Cache
from windtunnel.planning.demand import FITS, Verdict
from windtunnel.planning.measurement import FAILED, RAN, DeviceNeed, Measurement
from windtunnel.planning.planner import Answer, Candidate, Question
from windtunnel.planning.rehearsal import Job, Rehearsed
from windtunnel.planning.rows import Work
from windtunnel.planning.space import Choice
from windtunnel.planning.suggest import NOT_ACCUMULATED, NOT_TRIED, suggestions
from windtunnel.variables import TRIAL

GIB = 1 << 30


class Pool:
    """Expandable segments reserve less, fused optimizers are quicker, TF32 changes nothing, checkpointing fails."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Job]] = []

    @property
    def busy(self) -> int:
        return len(self.waiting)

    def submit(self, number: int, job: Job) -> None:
        self.waiting.append((number, job))

    def results(self) -> Iterator[tuple[int, Rehearsed]]:
        number, job = self.waiting.pop()
        reserved = 20 if "PYTORCH_CUDA_ALLOC_CONF" in job.variables else 25
        trial = job.variables.get(TRIAL)
        half = "--batch=4" in job.program.arguments
        need = DeviceNeed(24 * GIB, GIB, (10 if half else 18) * GIB, reserved * GIB, 18 * GIB, 0.05)
        step_ns = 80_000_000 if trial == "fused" else 60_000_000 if half else 100_000_000
        found = Measurement(RAN, "", (need,), 1, 3, step_ns)
        yield number, Rehearsed(Measurement(FAILED, "no") if trial == "checkpointing" else found)

    def close(self) -> None:
        self.waiting.clear()


def test_an_interrupted_trial_leaves_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Pool):
        def results(self) -> Iterator[tuple[int, Rehearsed]]:
            if any(TRIAL in job.variables for _, job in self.waiting):
                raise KeyboardInterrupt
            return super().results()

    monkeypatch.setattr(planning, "open_pool", lambda *_: Interrupted())
    made = planning.make(Question(Program("script", "train.py"), ("RTX4090",)), Work(), suggest=True)
    assert made.interrupted
    assert made.verdict == "EMULATED: take RTX4090"
    assert made.suggestions == []


def test_a_trial_that_helps_says_by_how_much_and_what_it_asks() -> None:
    question = Question(Program("script", "train.py"), ("RTX4090",))
    answer = Answer(Candidate("RTX4090"), Verdict(FITS))
    expandable, fused, unnamed, rest = suggestions(question, answer, Pool(), Cache(None))
    assert unnamed == NOT_ACCUMULATED
    assert "no change of the program" in expandable
    assert "reserved 26.0 GiB to 21.0 GiB (-19 %)" in expandable
    assert "`fused=True`" in fused
    assert "step 100 ms to 80.0 ms (-20 %)" in fused
    assert "tried in memory" in fused
    assert rest == NOT_TRIED


def test_half_the_batch_twice_is_tried_where_something_is_the_batch() -> None:
    question = Question(Program("script", "train.py"), ("RTX4090",))
    for choice, tried in ((Choice("option", "--batch", "8"), True), (Choice("option", "--batch", "7"), False)):
        *_, accumulated, _ = suggestions(
            question, Answer(Candidate("RTX4090", (choice,)), Verdict(FITS)), Pool(), Cache(None)
        )
        if tried:
            assert "two of --batch=4 a step" in accumulated
            assert "peak 19.0 GiB to 11.0 GiB (-42 %)" in accumulated
            assert "step 100 ms to 120 ms (+20 %)" in accumulated
        else:
            assert accumulated == NOT_ACCUMULATED


PROGRAM = """
import torch
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
plain = torch.optim.AdamW(model.parameters(), foreach=True)
made = torch.nn.Sequential(model)(torch.zeros(8, 64, device="cuda")).dtype
print(optimizer.defaults["fused"], plain.defaults["fused"], torch.get_float32_matmul_precision(), made)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("trial", "printed"),
    [
        ("fused", "True None highest torch.float32"),
        ("tf32", "None None high torch.float32"),
        ("autocast", "None None highest torch.bfloat16"),
        ("", "None None highest torch.float32"),
    ],
)
def test_a_change_is_made_in_memory_for_one_process(tmp_path: Path, trial: str, printed: str) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "A100", "--no-data", str(tmp_path / "train.py")],
        env={**os.environ, TRIAL: trial},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == printed
