"""Where configurations run: in this process, under an emulation, or in two processes that stay for all of them."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from compare import Verdict, documented_refusals, judge
from space import WORLD, draw

import understudy

ANSWER_S = 240.0  # a pair of processes that says nothing for so long is stuck in a collective; they start slowly


def verdicts(seed: int, strategy: str, numbers: Iterable[int]) -> Iterator[tuple[int, Verdict]]:
    if strategy in ("ddp", "fsdp"):
        yield from _in_pairs(seed, strategy, list(numbers))
        return
    import torch

    torch.set_num_threads(1)
    refusals = documented_refusals()
    for number in numbers:
        config = draw(strategy, seed, number)
        if config.num_gpus:
            with understudy.emulate(f"{config.num_gpus}xV100"):
                verdict = judge(config, refusals)
        else:
            verdict = judge(config, refusals)
        yield number, verdict


def _in_pairs(seed: int, strategy: str, numbers: list[int]) -> Iterator[tuple[int, Verdict]]:
    """Two processes work through all configurations; where they get stuck or die, two others go on behind it."""
    while numbers:
        answered = 0
        for verdict in _one_pair(seed, strategy, numbers):
            yield numbers[answered], verdict
            answered += 1
        if answered < len(numbers):
            yield numbers[answered], Verdict("differs", [f"no answer: the processes died or hung for {ANSWER_S:.0f} s"])
            answered += 1
        numbers = numbers[answered:]


def _one_pair(seed: int, strategy: str, numbers: list[int]) -> Iterator[Verdict]:
    command = [sys.executable, "-m", "understudy", "run", "-q", "--gpus", f"{WORLD}xV100"]
    command += ["--nproc-per-node", str(WORLD), str(Path(__file__).parent / "worker.py"), str(seed), strategy]
    job = subprocess.Popen(
        [*command, *map(str, numbers)],
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("SHOW_ERRORS") else subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert job.stdout is not None
    try:
        yield from _answers(job.stdout.fileno())
    finally:
        job.terminate()
        job.wait()


def _answers(read: int) -> Iterator[Verdict]:
    """A verdict a line, until the processes have ended or say nothing for too long."""
    with selectors.DefaultSelector() as selector:
        selector.register(read, selectors.EVENT_READ)
        rest = b""
        while selector.select(ANSWER_S):
            found = os.read(read, 65536)
            if not found:
                return
            *lines, rest = (rest + found).split(b"\n")
            yield from (Verdict(*json.loads(line)) for line in lines if line.startswith(b"["))
