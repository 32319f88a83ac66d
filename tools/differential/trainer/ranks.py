"""Where configurations run: in this process, under an emulation, or in two processes that stay for all of them."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import NamedTuple

import windtunnel
from tools import ROOT
from tools.differential.trainer.compare import Verdict, documented_refusals, judge
from tools.differential.trainer.space import WORLD, draw

IN_PAIRS = ("ddp", "fsdp")
ANSWER_S = 240.0  # a pair of processes that says nothing for so long is stuck in a collective; they start slowly


class Name(NamedTuple):
    """A configuration of a seed."""

    strategy: str
    number: int

    def __str__(self) -> str:
        return f"{self.strategy}/{self.number}"


def verdicts(seed: int, names: Iterable[Name]) -> Iterator[tuple[Name, Verdict]]:
    """The verdict on each, in this process or, for ddp and fsdp, in a pair of processes."""
    names = list(names)
    yield from _here(seed, [name for name in names if name.strategy not in IN_PAIRS])
    rest = [name for name in names if name.strategy in IN_PAIRS]
    while rest:  # where a pair gets stuck or dies, another one goes on behind it
        answered = 0
        for verdict in _one_pair(seed, rest):
            yield rest[answered], verdict
            answered += 1
        if answered < len(rest):
            yield rest[answered], Verdict("differs", [f"no answer: the processes died or hung for {ANSWER_S:.0f} s"])
            answered += 1
        rest = rest[answered:]


def _here(seed: int, names: list[Name]) -> Iterator[tuple[Name, Verdict]]:
    import torch

    torch.set_num_threads(1)
    refusals = documented_refusals()
    for name in names:
        config = draw(*name, seed)
        with windtunnel.emulate(f"{config.num_gpus}xV100") if config.num_gpus else nullcontext():
            verdict = judge(config, refusals)
        yield name, verdict


def _one_pair(seed: int, names: list[Name]) -> Iterator[Verdict]:
    command = [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", f"{WORLD}xV100"]
    command += ["--nproc-per-node", str(WORLD), "-m", "tools.differential.trainer.worker", str(seed)]
    job = subprocess.Popen(
        [*command, *map(str, names)],
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("SHOW_ERRORS") else subprocess.DEVNULL,
        cwd=ROOT,
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
