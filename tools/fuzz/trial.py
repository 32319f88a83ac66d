"""Mutants read in a process of their own, with limits of time and memory."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from tools.fuzz.formats import Format, Seeds
from tools.fuzz.mutants import mutant

TIME, WAIT = 20, 200
"""Seconds of the processor that reading one file may take, and seconds in all: other programs may be at work."""
MEMORY = 1 << 30
"""Bytes that reading may take beyond what the process held before."""


class Outcome(NamedTuple):
    """One mutant: its name, and what went wrong with it; "" where it got an answer."""

    name: str
    what: str


def batch(kind: Format, seeds: Seeds, folder: Path, numbers: Sequence[tuple[int, int]]) -> list[Outcome]:
    """Read some mutants of a format; where one ends the process, the rest goes on in another."""
    folder.mkdir(parents=True, exist_ok=True)
    maker = os.fork()  # what it takes to make a mutant is not what it takes to read it
    if maker == 0:
        _make(kind, seeds, folder, numbers)
    os.waitpid(maker, 0)
    outcomes: list[Outcome] = []
    while len(outcomes) < len(numbers):
        rest = numbers[len(outcomes) :]
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _child(kind, folder, rest, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            lines = pipe.read().splitlines()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        outcomes += [Outcome(*json.loads(line)) for line in lines]
        if len(lines) < len(rest):
            how = "took too long" if -status in (signal.SIGALRM, signal.SIGPROF) else f"ended the process ({status})"
            outcomes.append(Outcome(f"{kind.name}/{rest[len(lines)][1]}", how))
    return outcomes


def _make(kind: Format, seeds: Seeds, folder: Path, numbers: Sequence[tuple[int, int]]) -> NoReturn:
    try:
        for seed, number in numbers:
            file = _file(kind, folder, number)
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(mutant(kind, seeds, seed, number))
    finally:
        os._exit(0)  # reading says of a file that is not there


def _file(kind: Format, folder: Path, number: int) -> Path:
    """A mutant's path, its own: what was read from one may be remembered."""
    return folder / str(number) / kind.file


def _child(kind: Format, folder: Path, numbers: Sequence[tuple[int, int]], writing: int) -> NoReturn:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    if not os.environ.get("FUZZ_STDERR"):
        os.dup2(silence, 2)
    before = _peak()
    for _, number in numbers:
        file = _file(kind, folder, number)
        signal.setitimer(signal.ITIMER_PROF, TIME)
        signal.alarm(WAIT)
        what = ""
        try:
            kind.read(file)
        except Exception as error:  # noqa: BLE001 - whatever escapes a reader is what is looked for
            place = traceback.extract_tb(sys.exc_info()[2])[-1]
            what = f"{type(error).__name__}: {str(error)[:120]} at {Path(place.filename).name}:{place.lineno}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        if not what and _peak() - before > MEMORY:
            what = f"took {(_peak() - before) >> 20} MiB"
        os.write(writing, json.dumps([f"{kind.name}/{number}", what]).encode() + b"\n")
        before = max(before, _peak())
    os._exit(0)


def _peak() -> int:
    """The most memory that this process and its children have held, in bytes."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
