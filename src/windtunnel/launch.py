"""Run a program under emulation: its environment, its process, and what its processes leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from typing import IO, NamedTuple

from windtunnel import checks, departure, foreign, guard
from windtunnel.errors import FileFormatError, UsageError, torch_is_missing
from windtunnel.import_hook import FRAMEWORKS
from windtunnel.measure import kineto, record, snapshot
from windtunnel.ranks import after
from windtunnel.trace import journal
from windtunnel.trace.finding import SEVERITIES, Finding
from windtunnel.trace.operation import UNKNOWN_SITE
from windtunnel.trace.trace import SITE, Trace
from windtunnel.trace.units import plural
from windtunnel.variables import FOLDER, MEASURE, OPTIONS, PYTHON

SHIM = Path(__file__).parent / "shim"
CUDA = "windtunnel.seam.torch.extensions.program"
"""What builds a CUDA program and calls its `main`."""
SIGNAL_S = 0.2
"""Within this time a signal has reached every process of its group."""
LEFT_S = 1.0
"""How long processes may take to end after the program that started them."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
BETWEEN_RANKS = 64
"""Exit code of a run ended by a fault between its ranks."""
MARK = "run"
OUTCOMES = ("2", "65", "66")
MOST_NOTED = 1 << 20


def require_framework(program: Program) -> None:
    """Refuse a program that this Python has no framework for, so that none of its GPUs could be emulated.

    Raises:
        MissingPackageError: neither PyTorch nor another framework that can be emulated is installed here.
    """
    if program.kind != "command" and not any(util.find_spec(name) for name in FRAMEWORKS):
        raise torch_is_missing()


def environment(options: Mapping[str, object], folder: Path | None, base: Mapping[str, str]) -> dict[str, str]:
    """The variables under which a program and every Python that it starts emulate GPUs.

    Args:
        options: fields of `options.Options` by name; what is left out has its default.
        folder: where each process keeps its records; none are kept when None.
        base: the variables to start from; those of an outer run are replaced.
    """
    variables = dict(base)
    variables[OPTIONS] = json.dumps(dict(options), sort_keys=True)
    variables[PYTHON] = sys.executable
    variables["PYTHONPATH"] = _first(SHIM / "python", base.get("PYTHONPATH"))
    variables["PATH"] = search_path(base)
    variables.pop(FOLDER, None)
    variables.pop(MEASURE, None)
    if folder is not None:
        variables[FOLDER] = str(folder)
    return variables


def measuring_environment(folder: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The variables under which a program and every Python that it starts are recorded on the real GPUs."""
    variables = dict(base)
    variables.pop(OPTIONS, None)
    variables[MEASURE] = "1"
    variables[FOLDER] = str(folder)
    variables["PYTHONPATH"] = _first(SHIM / "python", base.get("PYTHONPATH"))
    return variables


def search_path(base: Mapping[str, str]) -> str:
    """PATH as the program will see it: `nvidia-smi` is ours."""
    return _first(SHIM / "bin", base.get("PATH", os.defpath))


def _first(folder: Path, path: str | None) -> str:
    """`folder` in front of a list of folders, and nowhere else in it."""
    others = path.split(os.pathsep) if path else []
    return os.pathsep.join([str(folder), *(other for other in others if other != str(folder))])


@dataclass(frozen=True)
class Program:
    """What to run, in Python's own terms.

    `kind` is "script", "module", "code", "command" or "cuda"; `name` the file, the module, the source text or the
    executable.
    """

    kind: str
    name: str
    arguments: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """The command that runs it in one process."""
        if self.kind == "command":
            return [self.name, *self.arguments]
        dashed = self.kind == "script" and self.name.startswith("-") and self.name != "-"
        flag = {"script": ["--"] if dashed else [], "module": ["-m"], "code": ["-c"], "cuda": ["-m", CUDA]}[self.kind]
        return [sys.executable, *flag, self.name, *self.arguments]

    def elastic_command(self, options: Sequence[str]) -> list[str]:
        """The command that runs it once a rank, under torchrun's elastic agent with torchrun's own `options`."""
        # Like torchrun, which is a script elsewhere, the agent takes no module from the folder it is called in.
        agent = [sys.executable, "-P", "-m", "torch.distributed.run", *options]
        if self.kind == "code":
            return [*agent, "--no-python", *self.command()]
        if self.kind == "cuda":
            raise UsageError(f"{self.name} is a CUDA program, which runs as one process")
        flag = {"script": [], "module": ["--module"], "command": ["--no-python"]}[self.kind]
        name = os.path.join(".", self.name) if self.name.startswith("-") else self.name  # no option of the agent's
        return [*agent, *flag, name, *self.arguments]


class Ended(NamedTuple):
    """How a command ended: its exit code, 128+N when signal N ended it, and whether it failed after a Ctrl-C."""

    code: int
    interrupted: bool = False


def run(
    command: Sequence[str],
    variables: Mapping[str, str],
    stdout: IO[bytes] | None = None,
    stderr: IO[bytes] | None = None,
) -> Ended:
    """Run a command to its end.

    The command has this process's terminal and stdin, and its stdout and stderr unless files are given. Signals that
    someone sends to this process go on to the command; those that a terminal (Ctrl-C) or somebody else sent to the
    whole process group have reached it already, and torchrun's agent gives up its ranks when a second one comes.

    Raises:
        UsageError: the command cannot be started.
    """
    passed_on = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    # A signal whose action is to be ignored would be dropped rather than kept for sigwait, on some systems.
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    # Blocked before the child exists, so that none is lost; the child begins with the mask that this process had.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [*passed_on, signal.SIGCHLD])
    interrupted, group = False, None
    try:
        try:
            child = subprocess.Popen(
                command,
                env=variables,
                stdout=stdout,
                stderr=stderr,
                close_fds=False,  # `prog.py <(...)` and `5< file` belong to the program; ours are not inheritable
                preexec_fn=_begins(passed_on, mask),
            )
        except OSError as error:
            raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from error
        # After the child: a signal of before went to a group in which there was none. One that came just now it may get
        # twice, before it has anything of its own to end.
        group = _Group(passed_on, mask)
        while (code := child.poll()) is None:
            number = signal.sigwait([*passed_on, signal.SIGCHLD])
            interrupted = interrupted or number == signal.SIGINT
            if number != signal.SIGCHLD and not group.got_it():
                child.send_signal(number)
    finally:
        if group is not None:
            group.leave()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGCHLD, before)
    return Ended(code if code >= 0 else 128 - code, interrupted and code != 0)


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """While this lasts, the end of this process, however hard, is the end of the run's processes and its folder."""
    reading, writing = map(_above_standard, os.pipe())
    script = Path(__file__).with_name("guard.py")
    with open(os.devnull, "r+b") as null:
        watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), str(reading), FOLDER, str(folder)],
            stdin=null, stdout=null, stderr=null, cwd=os.sep, env={}, start_new_session=True, pass_fds=[reading],
        )  # fmt: skip
    os.close(reading)
    try:
        yield
    finally:
        os.write(writing, b".")
        os.close(writing)
        watcher.wait()


def left_behind(folder: Path) -> list[int]:
    """The processes of the run in `folder` that outlive its program by more than a moment."""
    until = time.monotonic() + LEFT_S
    while (found := guard.processes(f"{FOLDER}={folder}".encode())) and time.monotonic() < until:
        time.sleep(0.05)
    return sorted(found)


def _above_standard(end: int) -> int:
    """A pipe's end under a number that no standard stream has, should one of those be closed."""
    if end > 2:
        return end
    moved = _above_standard(os.dup(end))
    os.close(end)
    return moved


def _begins(numbers: Sequence[int], mask: Iterable[int]) -> Callable[[], None]:
    """What a new process does before its command: signals that came meanwhile end it.

    This process's handlers would take them, and are gone with the command's first instruction.
    """

    def begin() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return begin


class _Group:
    """Tells whether a signal went to the whole process group: then it has ended a shell that waits there for nothing.

    The shell ends with this process, however that ends: its input does. Where there is none, no signal is the group's.
    """

    def __init__(self, numbers: Sequence[int], mask: Iterable[int]) -> None:
        self._begins = _begins(numbers, {*mask} - {*numbers})
        self._shell = self._begin()

    def _begin(self) -> subprocess.Popen[bytes] | None:
        with open(os.devnull, "r+b") as null, suppress(OSError):
            return subprocess.Popen(
                ["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE, stdout=null, stderr=null, cwd=os.sep, env={},
                preexec_fn=self._begins,
            )  # fmt: skip
        return None

    def got_it(self) -> bool:
        """Whether the signal that has just come was the group's."""
        if self._shell is None:
            return False
        try:
            self._shell.wait(SIGNAL_S)
        except subprocess.TimeoutExpired:
            return False
        self.leave()
        self._shell = self._begin()
        return True

    def leave(self) -> None:
        """End the shell."""
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.stdin.close()
            self._shell.wait()


@dataclass
class Result:
    """What the processes of a run left in its folder: traces by rank, and how they said that it ended.

    `outcome` is the exit code to use should the program have failed (65, 66 or 2), 0 when none was noted.
    """

    traces: list[Trace] = field(default_factory=list)
    outcome: int = 0
    lost: list[str] = field(default_factory=list)
    """What is missing of the records, a sentence each; a gate cannot pass without them."""
    notes: list[str] = field(default_factory=list)
    """Why the processes asked for `outcome`, in the words of the errors that ended them."""
    shadows: list[str] = field(default_factory=list)
    """Files that processes imported instead of a framework, a clause each."""
    libraries: list[str] = field(default_factory=list)
    """Libraries that stand-ins answered for, with the version, as "d2l 1.0.3"."""


def prepare(folder: Path) -> None:
    """Mark a folder as that of a run: without the mark, what its processes left there is gone."""
    (folder / MARK).touch()


def collect(folder: Path, failed: bool = False, interrupted: bool = False) -> Result:
    """Read what the processes of a run left in its folder; processes that used no GPU are left out.

    `failed` says that the program did, so that ranks which still waited when it ended did so in vain; `interrupted`
    that Ctrl-C ended it, so that ranks which ended before others did no harm.
    """
    result = Result()
    if not (folder / MARK).exists():
        result.lost.append(
            "the run's folder for temporary files was removed while the program ran, and the records of its work on "
            "GPUs with it: let the program remove only what it made itself"
        )
    for path in sorted([*folder.glob(f"*{departure.SUFFIX}"), *folder.glob(f"*{record.SUFFIX}")]):
        try:
            trace, whole = _kept(path) if path.suffix == departure.SUFFIX else (_measured(path), True)
        except (FileFormatError, OSError) as error:  # the program may write there too
            result.lost.append(f"the records of a process cannot be read: {error}")
            continue
        trace.folder = os.getcwd()  # it is this run's own, so its lines may be looked up
        if not whole:
            result.lost.append(_unfinished(path, trace))
            trace.facts["incomplete"] = True
            trace.facts["unwritten"] = _unwritten(path)
        if len(trace) or not whole:
            result.traces.append(trace)
    for path in sorted(folder.glob(f"*{departure.UNWRITTEN}")):
        if not path.with_suffix(departure.SUFFIX).exists():
            result.lost.append(f"process {path.stem} used a GPU and could not write its records: {_unwritten(path)}")
    for path in sorted(folder.glob(f"*{record.BEGUN}")):
        result.lost.append(f"process {path.stem} used a GPU and ended without writing what was recorded of it")
    result.traces.sort(key=lambda trace: (int(trace.facts.get("rank", 0)), -len(trace)))
    result.outcome = outcome(folder)
    result.shadows = sorted({f"`import {name}` found {file}" for name, file in _notes(folder, "shadow")})
    result.libraries = sorted({library for library, _ in _notes(folder, "library")})
    for trace in result.traces:
        trace.facts["libraries"] = result.libraries
    result.notes = [why for code, why in _outcomes(folder) if code == result.outcome]
    wrong = after.wrong(folder, failed, interrupted)
    if wrong:
        if not result.traces:
            result.traces.append(Trace())
        for note in wrong:
            result.traces[0].remark(note)
        result.outcome = max(result.outcome, BETWEEN_RANKS)
    for note in after.unlike(folder) if result.traces else ():
        result.traces[0].remark(note)
    return result


def _kept(path: Path) -> tuple[Trace, bool]:
    trace, whole = journal.read(path)
    return trace.canonical(), whole


def _unfinished(path: Path, trace: Trace) -> str:
    """What is known of a process whose journal has no end."""
    process = path.stem.partition("-")[0]
    reason = _unwritten(path)
    try:
        os.kill(int(process), 0)
        how = "still ran when the program had ended"
    except (OSError, ValueError, OverflowError):  # no such process, or a name that is not one of ours
        how = f"could not write all its records ({reason})" if reason else "was killed, or ended past Python"
    newest_first = (trace.sites[trace.rows.get(index, SITE)] for index in range(len(trace) - 1, -1, -1))
    last = next((site for site in newest_first if site.file), None)
    reach = f"{plural(len(trace), 'record')}, the last of {last}" if last else plural(len(trace), "record")
    return f"process {process} used a GPU and {how}: what is known of it ends with {reach}"


def _unwritten(path: Path) -> str:
    """Why a process wrote no more of its journal; nothing where it was not kept from it."""
    process = path.stem.partition("-")[0]
    with suppress(OSError):
        return foreign.line(os.readlink(path.with_name(process + departure.UNWRITTEN)))
    return ""


def _measured(path: Path) -> Trace:
    """A profile with the memory snapshot beside it."""
    trace = kineto.load(path)
    memory = path.with_name(path.name.removesuffix(record.SUFFIX) + record.SNAPSHOT)
    if memory.exists():
        snapshot.add(trace, memory)
    return trace


def outcome(folder: Path) -> int:
    """The exit code that the processes of a run asked for, should it have failed; 0 when none did."""
    return max((code for code, _ in _outcomes(folder)), default=0)


def _outcomes(folder: Path) -> list[tuple[int, str]]:
    """The exit code that each process asked for, and why; the gravest code first."""
    notes = [(int(code), why) for code, why in _notes(folder, "outcome") if code in OUTCOMES]
    return sorted(notes, key=lambda note: -note[0])


def _notes(folder: Path, kind: str) -> Iterator[tuple[str, str]]:
    """The first line and the rest of what processes noted of a kind; what the program itself has put there is none."""
    for path in sorted(folder.glob(f"*.{kind}")):
        with suppress(FileFormatError, OSError):
            first, _, rest = foreign.read_bytes(path, MOST_NOTED).decode("utf-8", "replace").partition("\n")
            yield first, rest


def merge(findings: Iterable[Finding]) -> list[Finding]:
    """The findings of several ranks as one list: the same code at the same lines is one finding, its costs added."""
    merged: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        where = finding.message if finding.site == UNKNOWN_SITE else finding.site[:2]
        key = (finding.code, where, finding.other[:2])
        known = merged.get(key)
        if known is None:
            merged[key] = finding
            continue
        worst = min(known, finding, key=lambda one: SEVERITIES.index(one.severity))
        merged[key] = worst._replace(
            times=known.times + finding.times,
            lost_ns=known.lost_ns + finding.lost_ns,
            size_bytes=known.size_bytes + finding.size_bytes,
            device=known.device if known.device == finding.device else -1,
        )
    return sorted(merged.values(), key=checks.rank)
