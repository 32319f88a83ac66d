"""One rehearsal of a program in a process of its own: how long its step and its run take, and what is found."""

from __future__ import annotations

import ast
import builtins
import contextlib
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from windtunnel import emulate
from windtunnel.judgement import judge
from windtunnel.reports.parts.time import measure
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import FIRST_USE, Kind
from windtunnel.trace.trace import Trace

PATIENCE_S = 600
MARK = "_round_of_the_loop"
ROUNDS = 4
HOST = "reference"
"""What issues the work: the record of what was promised and kept is of it."""
"""Fewer are no loop."""


class Job(NamedTuple):
    """What is rehearsed: a program's text, the file that it is of, and how it is run.

    `source` runs under the name of `file`, in `folder` (a temporary one when None), with `arguments` behind it;
    `prelude` runs before it inside the emulation, `options` are those of `emulate`. A program that calls `MARK()` after
    each round of its loop is measured by rounds. Findings are looked for where it is `judged`. `variables` are set in
    its environment.
    """

    source: str | ast.Module
    file: Path
    gpus: str
    arguments: tuple[str, ...] = ()
    prelude: str = ""
    options: Mapping[str, object] = MappingProxyType({})
    judged: bool = True
    folder: Path | None = None
    variables: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Rehearsal:
    """The mean round of the loop, the median steady step (None where there are too few), the run; kernels, findings,
    accesses without order; the peaks of what was allocated and of what was reserved, on the device with most of it.

    `failed` says why there is nothing of that: the program's error in one line.
    """

    round_ns: float | None = None
    step_ns: float | None = None
    run_ns: float = 0.0
    kernels: int = 0
    findings: tuple[Finding, ...] = ()
    failed: str = ""
    hazards: int = 0
    peak_bytes: int = 0
    reserved_bytes: int = 0

    def share_of(self, before: Rehearsal, of: str = "step") -> float:
        """What the change to this rehearsal saves of the one before it.

        Of its memory where `of` is a finding's "peak" or "reserved memory"; otherwise of a round, else of a step, else
        of the run.
        """
        for name in MEASURED.get(of, ("round_ns", "step_ns", "run_ns")):
            after_ns, before_ns = getattr(self, name), getattr(before, name)
            if after_ns and before_ns:
                return 1.0 - after_ns / before_ns
        raise ValueError("there is no work on a device to compare")


MEASURED = {"peak": ("peak_bytes",), "reserved memory": ("reserved_bytes",)}
"""What a finding's promise about memory is measured by."""


def prepare() -> None:
    """Import what every rehearsal needs, once and before the processes of the rehearsals are forked."""
    with emulate("V100", host=HOST) as session:
        exec(WARM, {})
    judge([session.trace.canonical()])


WARM = """
import torch
net = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.Adam(net.parameters())
for _ in range(3):
    net(torch.randn(8, 8).cuda()).square().mean().backward()
    optimizer.step()
"""


def rehearse(job: Job) -> Rehearsal:
    """Run a program under emulation in a forked process, so that nothing that it changes outlives it."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryFile() as errors:
        child = context.Process(target=_work, args=(job, theirs, errors.fileno()))
        child.start()
        theirs.close()
        try:
            return ours.recv() if ours.poll(PATIENCE_S) else Rehearsal(failed=f"not done after {PATIENCE_S} s")
        except EOFError:
            errors.seek(0)
            lines = errors.read().decode("utf-8", "replace").split("\n")
            said = [line for line in lines if line and not line.startswith((" ", "~", "^"))]
            return Rehearsal(failed=said[-1] if said else "its process ended without a result")
        finally:
            child.kill()
            child.join()


def _work(job: Job, answer: Connection, errors: int) -> None:
    warnings.simplefilter("ignore")
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    os.dup2(errors, 2)
    answer.send(_rehearse(job))
    os._exit(0)  # what the program registered for Python's end is of no use here


def _rehearse(job: Job) -> Rehearsal:
    sys.argv = [str(job.file), *job.arguments]
    sys.path.insert(0, str(job.file.parent))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(job.folder or folder)
        os.environ.update(job.variables)
        with emulate(job.gpus, **{"host": HOST, **job.options}) as session:
            rounds = _Rounds(session.trace)
            setattr(builtins, MARK, rounds.mark)
            exec(job.prelude, {"__name__": "prelude"})
            names = {"__name__": "__main__", "__file__": str(job.file)}
            with contextlib.suppress(SystemExit):
                exec(compile(job.source, str(job.file), "exec"), names)
        session.complete()
        trace = session.trace.canonical()
        kernels = sum(kind == Kind.KERNEL for kind in trace.rows.column(0))
        findings = tuple(judge([trace])) if job.judged else ()
        devices = trace.facts["devices"]
        return Rehearsal(
            rounds.length_ns(),
            measure(trace).step_ns,
            run_ns(trace),
            kernels,
            findings,
            hazards=len(trace.hazards),
            peak_bytes=max(device["peak_allocated_bytes"] for device in devices),
            reserved_bytes=max(device["peak_reserved_bytes"] for device in devices),
        )


class _Rounds:
    """When the devices had done what each round of the program's loop gave them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.seen = self.until_ns = 0
        self.ends: list[int] = []

    def mark(self) -> None:
        """A round is over."""
        rows = self.trace.rows
        for kind, _, _, _, _, _, end, _ in islice(iter(rows), self.seen, None):
            if kind <= Kind.COLLECTIVE or kind == Kind.SYNCHRONIZE:
                self.until_ns = max(self.until_ns, end)
        self.seen = len(rows)
        self.ends.append(self.until_ns)

    def length_ns(self) -> float | None:
        """The mean round, the first quarter left out; None with fewer than four."""
        steady = self.ends[len(self.ends) // 4 :]
        return (steady[-1] - steady[0]) / (len(steady) - 1) if len(self.ends) >= ROUNDS else None


def run_ns(trace: Trace) -> float:
    """From the first kernel's launch to the end of all work, without what happens once (contexts, libraries)."""
    began: int | None = None
    until = once = 0
    for kind, _, number, _, issued, start, end, _ in trace.rows:
        if kind == Kind.KERNEL and began is None:
            began = issued
        if kind <= Kind.COLLECTIVE or kind == Kind.SYNCHRONIZE:
            until = max(until, end)
        elif began is not None and kind == Kind.HOST and trace.signatures[number].name.startswith(FIRST_USE):
            once += end - start
    return float(until - began - once) if began is not None else 0.0
