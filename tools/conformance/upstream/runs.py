"""Run a file of PyTorch's tests in a process that may crash or hang: it costs one test, and a run can be resumed.

What happened is a journal of JSON lines (see `journal.py`); a process that died is started again with the tests left.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parents[1]
IMPORT_SECONDS = 300
POLL_SECONDS = 0.2
IDLE_SECONDS = 40
WAITING_FOR_THE_MACHINE = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
EMULATED = ("-p", "windtunnel", "--gpu-backend", "emulated", "--gpus", "2")
STUB = ("-p", "no:windtunnel", "-p", "no:windtunnel.pytest_plugin", "-p", "upstream.stub")
OTHER_GPUS = {
    r"Testing on one GPU is sufficient$": ("--gpus", "1"),
    r"Need at least [34] CUDA devices|Test requires at least [34] GPUs|world size of [34]": ("--gpus", "4"),
}
"""What tests say that skip themselves where there are two GPUs, and the GPUs that they are run on then."""
NO_TESTS = "no tests collected in "
"""What pytest prints of a file that can be imported and has none: it adds ", 1 error" to the first words otherwise."""
BAD = ("failed", "crashed", "stopped")


@dataclass
class Result:
    """How one test ended: passed, failed, skipped, crashed or stopped, with the first line of what it said.

    `alone` says that it had failed and was run again in a process of its own.
    """

    name: str
    outcome: str
    message: str = ""
    text: str = ""
    seconds: float = 0.0
    alone: bool = False


@dataclass
class FileJournal:
    """What is known of a file's run: the tests it has, in order, and the results so far."""

    path: Path
    collected: list[str] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)
    started: str | None = None
    finished: bool = False

    @classmethod
    def read(cls, path: Path) -> FileJournal:
        """A journal as it is on disk; an empty one where there is none. A torn last line counts as not written."""
        journal = cls(path)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if text and not text.endswith("\n"):
            path.write_text(text + "\n", encoding="utf-8")  # what is written next begins a line of its own
        for line in text.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                journal.take(json.loads(line))
        return journal

    def take(self, line: dict[str, Any]) -> None:
        """Take one line in."""
        if "collected" in line:
            self.collected = line["collected"]
        elif "start" in line:
            self.started = line["start"]
        elif "test" in line:
            known = (line["test"], line["outcome"], line["message"], line["text"], line["seconds"])
            result = Result(*known, alone=line.get("alone", False))
            self.results[result.name] = result
            self.started = None
        elif "finished" in line:
            self.finished = True

    def write(self, **line: Any) -> None:
        """Append a line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.take(line)

    def left(self) -> list[str]:
        """The tests without a result."""
        return [name for name in self.collected if name not in self.results]

    def forget(self, outcomes: tuple[str, ...] | None = None) -> None:
        """Drop results, so that their tests run again: those with these outcomes, or all."""
        kept = [r for r in self.results.values() if outcomes is not None and r.outcome not in outcomes]
        self.path.unlink(missing_ok=True)
        collected, self.results, self.finished = self.collected, {}, False
        if outcomes is None:
            self.collected = []
            return
        self.write(collected=collected)
        for r in kept:
            self.keep(r)

    def keep(self, r: Result) -> None:
        """Append a result."""
        self.write(test=r.name, outcome=r.outcome, seconds=r.seconds, message=r.message, text=r.text, alone=r.alone)


class InterruptedRunError(Exception):
    """The run was asked to stop; what ended so far is in the journals."""


@dataclass
class Runner:
    """How test processes are run.

    `tests` is PyTorch's folder of tests, `plugins` the pytest arguments that give them GPUs, `test_seconds` what one
    test may take of processor time, `memory_bytes` what a process may have, `idle_seconds` how long it may do nothing,
    `every` the files of which tests count that do not mention CUDA. `limit` gives a test of a file more than
    `test_seconds`, if a table says so.
    """

    tests: Path
    plugins: tuple[str, ...]
    test_seconds: float
    memory_bytes: int
    idle_seconds: float = IDLE_SECONDS
    every: frozenset[str] = frozenset()
    limit: Callable[[str, str, float], float] = lambda file, name, usual: usual
    stopping: bool = False

    def run(self, file: str, journal: FileJournal, only: frozenset[str] | None = None) -> None:
        """Run a file's tests (those of `only`) that the journal has no result of, until each has one."""
        journal.path.parent.mkdir(parents=True, exist_ok=True)
        if not journal.collected:
            said = self.process(file, journal, None)
            journal = FileJournal.read(journal.path)
            if not journal.collected and NO_TESTS not in said:
                journal.write(test="import", outcome="failed", seconds=0, message=last_line(said), text=said[-6000:])
        while True:
            left = [name for name in journal.left() if only is None or name in only]
            if not left:
                break
            said = self.process(file, journal, left)
            journal = FileJournal.read(journal.path)
            if journal.started is None and len(journal.left()) and journal.left()[0] == left[0]:
                journal.write(test=left[0], outcome="crashed", seconds=0, message=last_line(said), text=said[-6000:])
        if only is None:
            journal.write(finished=True)

    def again(self, file: str, journal: FileJournal) -> None:
        """Run what failed once more, each test in a process of its own, as PyTorch's CI does.

        What passes there depended on what the tests before it had left behind. Source: `run_test_retries` of
        test/run_test.py.
        """
        for name in [r.name for r in journal.results.values() if r.outcome == "failed" and not r.alone]:
            self.process(file, journal, [name])
            result = FileJournal.read(journal.path).results[name]
            result.alone = True
            journal.keep(result)

    def with_other_gpus(self, file: str, journal: FileJournal) -> None:
        """Run on one or four GPUs the tests that skip themselves where there are two."""
        skipped = [result for result in journal.results.values() if result.outcome == "skipped"]
        for words, gpus in OTHER_GPUS.items():
            for result in skipped:
                if re.search(words, result.message):
                    self.process(file, journal, [result.name], gpus)

    def process(self, file: str, journal: FileJournal, select: list[str] | None, options: tuple[str, ...] = ()) -> str:
        """One test process, watched; what it printed. A test that was running when it ended is written down.

        `options` are given to pytest after the plugins' own, so that they win.
        """
        command = [sys.executable, "-m", "pytest", "--noconftest", "-q", "-p", "no:cacheprovider", "-c", os.devnull,
                   "--rootdir", str(self.tests), *self.plugins, *options, "-p", "upstream.journal", file]  # fmt: skip
        environment = {**os.environ, "UPSTREAM_JOURNAL": str(journal.path)}
        paths = [str(HERE), str(self.tests), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        environment["OMP_NUM_THREADS"] = "1"
        # PyTorch's own limit for a test of several processes is of the clock, which a busy machine spends elsewhere.
        environment.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "3600")
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+", errors="replace") as output:
            if select is None:
                command.append("--collect-only")
                environment["UPSTREAM_EVERY"] = "1" if file in self.every else ""
            else:
                Path(folder, "select").write_text("\n".join(select), encoding="utf-8")
                environment["UPSTREAM_SELECT"] = str(Path(folder, "select"))
            child = subprocess.Popen(command, cwd=self.tests, env=environment, stdin=subprocess.DEVNULL,
                                     stdout=output, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
            try:
                stopped = self.watch(child, journal.path, file)
                if self.stopping:
                    raise InterruptedRunError
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            output.seek(0)
            said = output.read()
        after = FileJournal.read(journal.path)
        if after.started is not None:
            after.write(test=after.started, outcome="stopped" if stopped else "crashed", seconds=0,
                        message=stopped or ended(child.returncode), text=said[-6000:])  # fmt: skip
        return said

    def watch(self, child: subprocess.Popen[bytes], path: Path, file: str) -> str:
        """Wait for a process to end; why it has to be stopped, when it takes too long or too much memory.

        What a test may take is processor time, so that a busy machine does not count against it. Nor does it count as
        idle who has waited for the processor or the disk since the last look.
        """
        size, allowed = -1, float(IMPORT_SECONDS)
        process = psutil.Process(child.pid)
        began = rested = 0.0
        busy = False
        moved = time.monotonic()
        while child.poll() is None and not self.stopping:
            with contextlib.suppress(psutil.NoSuchProcess):
                family = [process, *process.children(recursive=True)]
                if sum(one.memory_info().rss for one in family) > self.memory_bytes:
                    return f"more than {self.memory_bytes / 2**30:.0f} GiB of this machine's memory used"
                used = sum(processor_seconds(one) for one in family)
                now = path.stat().st_size if path.exists() else -1
                before, busy = busy, any(one.status() in WAITING_FOR_THE_MACHINE for one in family)
                if now != size or abs(used - rested) > 1 or (before and busy):  # less used where a child process ended
                    rested, moved = used, time.monotonic()
                if now != size:
                    allowed = self.limit(file, running(path), self.test_seconds) if size >= 0 else IMPORT_SECONDS
                    size, began = now, used
                elif used - began > allowed:
                    return f"no end after {allowed:.0f} s of processor time"
                elif time.monotonic() - moved > self.idle_seconds:
                    return f"hung: no processor time taken for {self.idle_seconds:.0f} s"
            time.sleep(POLL_SECONDS)
        return ""


def running(path: Path) -> str:
    """The test that began last in a journal that a process is writing; "" before the first."""
    for line in reversed(path.read_text(encoding="utf-8").splitlines()):
        with contextlib.suppress(json.JSONDecodeError):
            if name := json.loads(line).get("start"):
                return str(name)
    return ""


def processor_seconds(process: psutil.Process) -> float:
    """What a process has taken of the processor so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def ended(code: int) -> str:
    """How a process ended, in words."""
    if code < 0:
        return f"the process ended on {signal.Signals(-code).name}"
    return f"the process ended with exit code {code}"


def last_line(said: str) -> str:
    """The last line that names an error, of what pytest printed."""
    lines = [line for line in said.splitlines() if line.startswith("E  ") or "Error" in line]
    return lines[-1].removeprefix("E").strip() if lines else "the process printed no error"
