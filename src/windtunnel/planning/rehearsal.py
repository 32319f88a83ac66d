"""One rehearsal without data, in separate processes: a job in, a measurement out. It runs on any machine."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from windtunnel import agent, cluster, gpus, launch
from windtunnel.checks.not_modelled import uncompiled
from windtunnel.errors import UnsupportedError, UsageError
from windtunnel.planning import folded
from windtunnel.planning.cache import digest, key_of
from windtunnel.planning.forkservers import ForkServers, end
from windtunnel.planning.measurement import FAILED, NO_MEMORY, REFUSED, Measurement, measure
from windtunnel.planning.space import environment_of
from windtunnel.ranks.fold import Fold
from windtunnel.trace.units import plural

UNCOMPILED = (
    "torch.compile compiled nothing here, so times and memory would be the uncompiled program's: {cure}; "
    "TORCH_COMPILE_DISABLE=1 plans the uncompiled program"
)
DOES_NOT_FIT, CANNOT_EMULATE = 65, 66
MOST_TRACE_BYTES = 16 << 20
POLL_S = 0.05
PLAYED = 2
"""As many ranks of a cluster are played where all do the same."""
RANK = re.compile(r"^\[rank\d+\]: ?")
AGENT = "ChildFailedError"
"""What torchrun's agent raises when a rank has failed, whatever its reason."""
interrupted = threading.Event()
"""Set where what runs in this process's threads is to end at once."""


@dataclass(frozen=True)
class Job:
    """What to rehearse, with everything that determines the result, so that it can be sent and hashed.

    `spec` names the GPUs, `options` are further fields of `options.Options`, `variables` are changes to the environment
    (None: unset), `files` are copies of configuration files by the names used in the arguments. `processes` is the
    number of ranks that torchrun's agent starts, None for a program that is started directly. `nodes` are the machines
    with these GPUs in a cluster, whose ranks are played; None without a cluster.
    """

    program: launch.Program
    spec: str
    options: Mapping[str, object] = field(default_factory=dict)
    variables: Mapping[str, str | None] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    processes: int | None = None
    folder: str = "."
    timeout_s: float = 900.0
    nodes: int | None = None

    @property
    def slots(self) -> int:
        """How many Python processes do the work of the rehearsal at once, as far as that is known."""
        return PLAYED if self.nodes is not None else self.processes or 1

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
            "nodes": self.nodes,
            "folder": os.path.abspath(self.folder),
        }
        return key_of(parts, environment_of(self.variables, os.environ))


@dataclass(frozen=True)
class Rehearsed:
    """A job's measurement, its trace if it may be retimed, and the hashes of the program's files."""

    measurement: Measurement
    trace: bytes | None = None
    files: Mapping[str, str] = field(default_factory=dict)


def rehearse(job: Job, servers: ForkServers | None = None) -> Rehearsed:
    """Run a job to its end and return the result; a failing program gives a measurement that says so.

    With `servers` it is, if possible, a fork of a Python that has imported the program's first imports.

    Raises:
        UsageError: the program cannot be started.
    """
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="windtunnel-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with launch.guarded(folder):
            launch.prepare(folder)
            play = _played if job.nodes is None else _cluster
            result, code, text, resident_bytes = play(job, folder) or (None, 0, "", 0)
            if result is None:
                cluster.empty(folder)
                launch.prepare(folder)
                code, text, resident_bytes = _run(job, folder, servers)
        result = result or launch.collect(folder)
        found = _measured(job, code, text, result)
        trace = _saved(result, folder) if found.status == "ran" and found.processes == 1 else None
    found = replace(found, seconds=round(time.monotonic() - begun, 3), resident_bytes=resident_bytes)
    files = {file: digest(file) for file in found.files}
    return Rehearsed(found, trace, files)


class Process(Protocol):
    """The process of a rehearsal."""

    def poll(self) -> int | None:
        """The exit code; None while the process runs."""

    def kill(self) -> None:
        """End the process and all its children, and wait for them."""

    @property
    def resident_bytes(self) -> int:
        """The memory that the process, or the largest process so far, took on this machine, once it has ended."""


class Started:
    """A process with its own Python."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], cwd: str, errors: Path) -> None:
        with open(errors, "wb") as stderr, open(os.devnull, "r+b") as null:
            try:
                self._child = subprocess.Popen(
                    command, env=variables, cwd=cwd, stdin=null, stdout=null, stderr=stderr, start_new_session=True
                )
            except OSError as error:
                raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from error
        self.poll = self._child.poll

    def kill(self) -> None:
        """End the process; its children are found by their environment."""
        with contextlib.suppress(ProcessLookupError):
            self._child.kill()
        self._child.wait()

    @property
    def resident_bytes(self) -> int:
        """The memory of the largest child process so far."""
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Attempts:
    """Runs of a job as some of its ranks, of which the last one counts: what `_run` returned."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self.folder = folder
        self.last: tuple[int | None, str, int] = (0, "", 0)

    def __call__(self, fold: Fold) -> launch.Ended:
        self.last = _run(self.job, self.folder, None, fold)
        code = self.last[0]
        return launch.Ended(1 if code is None else code, code is None)


def _played(job: Job, folder: Path) -> tuple[launch.Result, int | None, str, int] | None:
    """What all ranks of a job leave, of which few are played; None where all of them have to run."""
    if job.processes is None or len(gpus.parse(job.spec)) != job.processes:
        return None
    attempts = Attempts(job, folder)
    was = folded.play(job.program, job.processes, folder, Path(job.folder), attempts)
    return None if was is None else (was[1], *attempts.last)


def _cluster(job: Job, folder: Path) -> tuple[launch.Result, int | None, str, int]:
    """What the ranks of a cluster leave that stand for others."""
    per_node = len(gpus.parse(job.spec))
    attempts = Attempts(job, folder)
    fold = Fold((job.nodes or 1) * per_node, per_node)
    try:
        was = cluster.play(fold, job.program, folder, attempts, Path(job.folder), told=False)
    except UnsupportedError as error:
        return launch.Result(notes=[str(error)], outcome=CANNOT_EMULATE), CANNOT_EMULATE, str(error), attempts.last[2]
    firsts = {members[0] for members in was.fold.classes}
    was.result.traces = [trace for rank, trace in cluster.by_rank(was.result).items() if rank in firsts]
    return was.result, *attempts.last


def _run(job: Job, folder: Path, servers: ForkServers | None, fold: Fold | None = None) -> tuple[int | None, str, int]:
    """The program's exit code (None if its time ran out), its stderr, and the memory that it took."""
    options = {**job.options, "gpus": job.spec}
    base = environment_of(job.variables, os.environ)
    base.setdefault("OMP_NUM_THREADS", "1")
    variables = launch.environment(options, folder, base)
    program = _with_files(job, folder)
    errors = folder / "stderr.txt"
    until = time.monotonic() + job.timeout_s

    def over() -> bool:
        return time.monotonic() >= until or interrupted.is_set()

    child: Process | None = None
    if servers is not None and job.processes is None:
        child = servers.fork(program, options, base, variables, job.folder, errors, over)
    if child is None:
        if fold is not None:
            command = agent.command(fold, program.command())
        elif job.processes is not None:
            # By the loopback interface's address, which the stores of the ranks listen on then, and no other.
            words = [f"--nproc-per-node={job.processes}", "--standalone", f"--local-addr={agent.LOOPBACK}"]
            command = program.elastic_command(words)
        else:
            command = program.command()
        child = Started(command, variables, job.folder, errors)
    try:
        while (code := child.poll()) is None and not over():
            time.sleep(POLL_S)
    finally:
        end(folder)
        child.kill()
    text = errors.read_text(encoding="utf-8", errors="replace") if errors.exists() else ""
    return code, text, child.resident_bytes


def _with_files(job: Job, folder: Path) -> launch.Program:
    """The program, with its configuration files' names replaced by copies in the run's folder."""
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
    cures = [cure for trace in result.traces if (cure := uncompiled(trace.notes))]
    if cures:
        return Measurement(REFUSED, UNCOMPILED.format(cure=cures[0]))
    return measure(result.traces, job.processes if job.nodes is not None else None)


def _was_short(result: launch.Result) -> bool:
    """Whether an allocation failed, however the program handled that."""
    totals = [total for trace in result.traces for total in trace.facts.get("devices", ())]
    return any(total.get("out_of_memory") for total in totals)


def _memory_of(result: launch.Result) -> Measurement:
    return measure(result.traces) if result.traces else Measurement(NO_MEMORY)


def _note(notes: Sequence[str], text: str) -> str:
    lines = [line for note in notes for line in note.splitlines() if line.strip()]
    return lines[0].strip() if lines else _last(text)


def _last(text: str) -> str:
    """The last line naming an exception that a failing program wrote; a rank's is preferred to its agent's."""
    lines = [RANK.sub("", line).strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception", "Exit", "Interrupt"))]
    errors = [line for line in errors if AGENT not in line] or errors
    return (errors or lines or ["it wrote nothing on stderr"])[-1][:300]


def _saved(result: launch.Result, folder: Path) -> bytes | None:
    path = folder / "kept.trace"
    result.traces[0].save(path)
    data = path.read_bytes()
    return data if len(data) <= MOST_TRACE_BYTES else None
