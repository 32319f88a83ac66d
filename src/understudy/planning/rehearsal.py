"""One rehearsal without data, in processes of its own: a job in, a measurement out. It runs on any machine."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from understudy import gpus, guard, launch
from understudy.errors import UsageError
from understudy.planning.cache import digest, key_of
from understudy.planning.measurement import FAILED, NO_MEMORY, REFUSED, Measurement, measure
from understudy.planning.space import environment_of
from understudy.trace.units import plural
from understudy.variables import FOLDER

DOES_NOT_FIT, CANNOT_EMULATE = 65, 66
MOST_TRACE_BYTES = 16 << 20
POLL_S = 0.05
interrupted = threading.Event()
"""Set where what runs in this process's threads is to end at once."""


@dataclass(frozen=True)
class Job:
    """What to rehearse: everything that decides the result is in here, so that it can be sent and hashed.

    `spec` are the GPUs, `options` further fields of `session.Options`, `variables` what differs in the environment
    (None: not set), `files` copies of configurations by the name that the arguments give them. `processes` is how many
    ranks torchrun's agent starts, None for a program that is started as it is.
    """

    program: launch.Program
    spec: str
    options: Mapping[str, object] = field(default_factory=dict)
    variables: Mapping[str, str | None] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    processes: int | None = None
    folder: str = "."
    timeout_s: float = 900.0

    @property
    def slots(self) -> int:
        """How many processes of Python it has at once that do the work of a rehearsal."""
        return self.processes or 1

    def key(self) -> str:
        """Its name in the cache."""
        inputs = [self.program.name, *(word.rpartition("=")[2] for word in self.program.arguments)]
        named = {word: digest(Path(self.folder) / word) for word in inputs if (Path(self.folder) / word).is_file()}
        parts = {
            "program": [self.program.kind, self.program.name, list(self.program.arguments)],
            "inputs": named,
            "gpus": [{**gpus.describe(gpu), "facts": repr(gpu)} for gpu in gpus.parse(self.spec)],
            "options": dict(self.options),
            "files": dict(self.files),
            "processes": self.processes,
            "folder": os.path.abspath(self.folder),
        }
        return key_of(parts, environment_of(self.variables, os.environ))


@dataclass(frozen=True)
class Rehearsed:
    """A job's measurement, its trace where it may be retimed, and the hashes of the program's files."""

    measurement: Measurement
    trace: bytes | None = None
    files: Mapping[str, str] = field(default_factory=dict)


def rehearse(job: Job) -> Rehearsed:
    """Run a job to its end and say what it gave; a program that fails gives a measurement that says so.

    Raises:
        UsageError: the program cannot be started.
    """
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="understudy-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with launch.guarded(folder):
            launch.prepare(folder)
            code, text = _run(job, folder)
        result = launch.collect(folder)
        found = _measured(job, code, text, result)
        trace = _saved(result, folder) if found.status == "ran" and found.processes == 1 else None
    usage = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    found = replace(found, seconds=round(time.monotonic() - begun, 3), resident_bytes=usage)
    files = {file: digest(file) for file in found.files}
    return Rehearsed(found, trace, files)


def _run(job: Job, folder: Path) -> tuple[int | None, str]:
    """The program's exit code and what it wrote on stderr; None when its time was over."""
    variables = launch.environment({**job.options, "gpus": job.spec}, folder, environment_of(job.variables, os.environ))
    variables.setdefault("OMP_NUM_THREADS", "1")
    program = _with_files(job, folder)
    if job.processes is None:
        command = program.command()
    else:
        command = program.elastic_command([f"--nproc-per-node={job.processes}", "--standalone"])
    errors = folder / "stderr.txt"
    with open(errors, "wb") as stderr, open(os.devnull, "r+b") as null:
        try:
            child = subprocess.Popen(
                command, env=variables, cwd=job.folder, stdin=null, stdout=null, stderr=stderr, start_new_session=True
            )
        except OSError as error:
            raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from error
        until = time.monotonic() + job.timeout_s
        try:
            while (code := child.poll()) is None and time.monotonic() < until and not interrupted.is_set():
                time.sleep(POLL_S)
        finally:
            end(folder)
            child.wait()
    return code, errors.read_text(encoding="utf-8", errors="replace")


def end(folder: Path) -> None:
    """End every process of the rehearsal in `folder` that still runs."""
    for process in guard.processes(f"{FOLDER}={folder}".encode()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _with_files(job: Job, folder: Path) -> launch.Program:
    """The program with the copies of its configurations, written into the run's folder, in the place of their names."""
    arguments = list(job.program.arguments)
    for number, (name, text) in enumerate(job.files.items()):
        path = folder / f"config{number}" / Path(name).name
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
        arguments = [
            str(path) if word == name else word[: -len(name)] + str(path) if word.endswith(f"={name}") else word
            for word in arguments
        ]
    return replace(job.program, arguments=tuple(arguments))


def _measured(job: Job, code: int | None, text: str, result: launch.Result) -> Measurement:
    outcome = result.outcome if code else 0
    if code is None:
        steps = max((measure([trace]).steps for trace in result.traces), default=0)
        return Measurement(
            FAILED, f"it had not ended after {job.timeout_s:,.0f} s, in which it took {plural(steps, 'step')}"
        )
    if outcome == DOES_NOT_FIT or (code and outcome != CANNOT_EMULATE and _was_short(result)):
        return replace(_memory_of(result), status=NO_MEMORY, message=_note(result.notes, text))
    if outcome == CANNOT_EMULATE:
        return Measurement(REFUSED, _note(result.notes, text))
    if code:
        return Measurement(FAILED, f"it ended with {code}: {_last(text)}")
    if not result.traces:
        return Measurement(FAILED, result.lost[0] if result.lost else "it did nothing on a GPU")
    if result.lost:
        return Measurement(FAILED, result.lost[0])
    return measure(result.traces)


def _was_short(result: launch.Result) -> bool:
    """Whether an allocation failed, whatever the program made of it."""
    totals = [total for trace in result.traces for total in trace.facts.get("devices", ())]
    return any(total.get("out_of_memory") for total in totals)


def _memory_of(result: launch.Result) -> Measurement:
    return measure(result.traces) if result.traces else Measurement(NO_MEMORY)


def _note(notes: Sequence[str], text: str) -> str:
    lines = [line for note in notes for line in note.splitlines() if line.strip()]
    return lines[0].strip() if lines else _last(text)


def _last(text: str) -> str:
    """The last line that a failing program wrote, which names the exception as a rule."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception", "Exit", "Interrupt"))]
    return (errors or lines or ["it wrote nothing on stderr"])[-1][:300]


def _saved(result: launch.Result, folder: Path) -> bytes | None:
    path = folder / "kept.trace"
    result.traces[0].save(path)
    data = path.read_bytes()
    return data if len(data) <= MOST_TRACE_BYTES else None
