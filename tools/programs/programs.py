"""Run programs that others wrote on emulated GPUs, and write docs/figures/programs.json and docs/programs.md.

    python -m tools.programs.programs                        every program of programs.toml that packages alone give
    python -m tools.programs.programs --sources DIR          those of git checkouts too: DIR/examples, DIR/nanoGPT, ...
    python -m tools.programs.programs --sources DIR --clone  the same; what DIR lacks is cloned from GitHub first
    python -m tools.programs.programs --only "HF generate"   some of them (part of a name is enough); --list: the names

Packages are installed into the environment that runs this file: `make programs` makes one of its own. Programs run in
temporary folders; nothing of a checkout is changed. The exit code is 1 when a program that ran did not do what its row
asks for, 130 after Ctrl-C; rows that were done by then are on the page.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from tools import ROOT
from tools.docs import figures
from tools.programs.program_data import MAKERS
from tools.programs.program_packages import clone, commit_of, folders_of, install, version_of

HERE = Path(__file__).resolve().parent
TABLE = HERE / "programs.toml"
SCRIPTS = HERE / "scripts"
RECOVERY = ROOT / "examples" / "recovery"
PAGE = ROOT / "docs" / "programs.md"
ERROR = re.compile(r"^(?:\[?rank\d+\]?:? ?|E +)*([\w.]*(?:Error|Exception|Exit|Interrupt)\b.*)$", re.MULTILINE)
ABORT = re.compile(r"^ *what\(\): +(.*)$", re.MULTILINE)
SUMMARY = re.compile(r"^[= ]*((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", re.MULTILINE)
COUNTED = re.compile(r"(\d+) (passed|failed|skipped|error)")
"""In pytest's last line."""
UNPASSED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
IDLE = "not run"
PYTEST = ("pytest", "-q", "-p", "no:cacheprovider", "--color=no", "--disable-warnings")
RANKS = "--nproc-per-node"
HOST = "reference"
"""What issues the programs' work: the steps in the data are of it."""
SECONDS = re.compile(r"seconds a step: processor ([\d.]+), real ([\d.]+)")
"""What scripts/step_seconds.py prints."""
SLOWEST = 4.0
"""How many times the CPU's processor time a step may take."""
GRACE_S = 10
"""How long a program that is ended may take to leave."""

HEAD = """# Programs that others wrote

The programs below run unchanged on emulated GPUs; where they print losses that can be compared, those equal the
CPU's. [The data](figures/programs.json) have what each does, its GPUs, its packages with their versions, the step's
time with the host `reference` and the peak of memory (both modelled), and the findings.

## Repeat it

`make programs` runs them, in an environment of its own (2 GB), writes the data and this page, and keeps what an
earlier run said of programs that it did not run. All inputs are generated locally. `tools/programs/programs.toml` has
each program's command and says how its success is judged: it must succeed and print what its row expects.

- `make programs ARGS="--sources DIR --clone"` also runs those that need a git checkout, and clones what DIR lacks.
- `make programs TORCH=2.14.1` runs those that need torchvision, which is published for CUDA builds of torch, and
  torchtitan. If torchvision's Python part is enough, that part is installed in a folder that only the programs naming
  it can see.
- `make programs-compiled` runs those called "compiled", with Triton. Triton's tutorials compare their own results
  with PyTorch's. A program that says how long a step takes on this machine fails if that is more than four times the
  CPU's processor time: steps of a millisecond are mostly the emulation's own work.

"""


@dataclass(frozen=True)
class Row:
    """One program of programs.toml; its fields are explained there."""

    name: str
    what: str
    gpus: str
    command: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    checkout: str = ""
    folder: str = ""
    prepare: str = ""
    script: str = ""
    recovery: str = ""
    prints: str = ""
    until: str = ""
    tests: bool = False
    bugs: dict[str, str] = field(default_factory=dict)
    minutes: float = 5
    cpu: tuple[str, ...] = ()
    uncompiled: tuple[str, ...] = ()
    losses: str = ""
    variables: dict[str, str] = field(default_factory=dict)


@dataclass
class Outcome:
    """What became of a program: "runs", "fails", "passed" (for tests) or "not run", and the reason in one line."""

    word: str
    reason: str = ""
    step: str = ""
    peak: str = ""
    findings: str = ""

    @property
    def good(self) -> bool:
        """Whether it did what its row asks for, or could not be tried."""
        return self.word != "fails"

    def __str__(self) -> str:
        return f"{self.word}: {self.reason}" if self.reason else self.word


def rows() -> tuple[list[Row], dict[str, str]]:
    """The programs, and the version of each package."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    fields: list[dict[str, Any]] = [
        {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
        for row in table["program"]
    ]
    return [Row(**row) for row in fields], table["versions"]


# ---------------------------------------------------------------------- running


def run(row: Row, sources: Path | None, log: Path, patience: float) -> Outcome:
    """Run a program in a temporary folder, its output in `log`, and judge it."""
    if row.checkout:
        if sources is None:
            return Outcome(IDLE, f"needs a checkout of {row.checkout}: --sources DIR")
        origin = sources / row.checkout.split("/")[1] / row.folder
        if not origin.is_dir():
            return Outcome(IDLE, f"{row.checkout} is not in the folder of --sources: --clone gets it")
    with tempfile.TemporaryDirectory(prefix="windtunnel-programs-", ignore_cleanup_errors=True) as name:
        folder = Path(name) / "program"
        if row.checkout:
            shutil.copytree(origin, folder, ignore=shutil.ignore_patterns(".git"))
        else:
            folder.mkdir()
        if row.prepare:
            MAKERS[row.prepare](folder)
        report = Path(name) / "report.json"
        code, output = _execute(_command(row, folder, report), _variables(row, folder), folder, row, log, patience)
        if code is None:
            return Outcome("fails", f"not done after {row.minutes * patience:g} minutes")
        outcome = _judge_tests(row, output) if row.tests else _judge(row, code, output)
        if row.tests:
            _without_gpus(row, outcome, folder, log, patience)
        elif row.cpu and outcome.good:
            outcome = _beside_cpu(row, output, folder, log, patience)
        elif row.uncompiled and outcome.good:
            outcome = _beside_uncompiled(row, output, folder, log, patience)
        if report.exists():
            _read(json.loads(report.read_text(encoding="utf-8")), outcome)
        return outcome


def _beside_cpu(row: Row, output: str, folder: Path, log: Path, patience: float) -> Outcome:
    """Run the same program on the CPU, without windtunnel, in as many ranks: the losses of both must be equal."""
    ranks = ["-m", "torch.distributed.run", "--standalone", *row.options] if RANKS in row.options else []
    command = [sys.executable, *ranks, *_words(row.cpu, row, folder)]
    code, plain = _execute(command, _variables(row, folder), folder, row, log.with_suffix(".cpu.log"), patience)
    ours, theirs = (_numbers(row.losses, text) for text in (output, plain))
    if code != 0 or not theirs:
        return Outcome("fails", f"on the CPU it ended with exit code {code} and {len(theirs)} losses")
    if not _equal(ours, theirs):
        return Outcome("fails", f"its losses {ours} are not the CPU's {theirs}")
    reason = f"{_losses(ours)} equal to the CPU's"
    emulated, alone = (_seconds(text) for text in (output, plain))
    if emulated and alone:
        (processor, real), (its_processor, its_real) = emulated, alone
        reason += (
            f"; a step takes {_milliseconds(real)} where the CPU's takes {_milliseconds(its_real)}: "
            f"{real / its_real:.1f} times the real and {processor / its_processor:.1f} times the processor time"
        )
        if processor > SLOWEST * its_processor:
            return Outcome("fails", reason)
    return Outcome("runs", reason)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds > 0.1 else f"{seconds * 1000:.3g} ms"


def _seconds(text: str) -> tuple[float, ...]:
    """Processor and real seconds of a step, of the slowest process that says so; nothing where none does."""
    found = [tuple(map(float, one)) for one in SECONDS.findall(text)]
    return max(found, default=())


def _beside_uncompiled(row: Row, output: str, folder: Path, log: Path, patience: float) -> Outcome:
    """Run the same program without torch.compile, on the same GPUs: the losses that both print must be equal."""
    command = _command(replace(row, command=row.uncompiled), folder, folder.parent / "uncompiled.json")
    beside = log.with_suffix(".uncompiled.log")
    code, plain = _execute(command, _variables(row, folder), folder, row, beside, patience)
    ours, theirs = (_numbers(row.losses, text) for text in (output, plain))
    if code != 0 or not theirs:
        return Outcome("fails", f"uncompiled it ended with exit code {code} and {len(theirs)} losses")
    if not _equal(ours, theirs):
        return Outcome("fails", f"its losses {ours} are not those of the uncompiled program, {theirs}")
    return Outcome("runs", f"{_losses(ours)} equal to the uncompiled program's")


def _losses(values: list[float]) -> str:
    return f"{len(values)} loss" if len(values) == 1 else f"{len(values)} losses"


def _equal(ours: list[float], theirs: list[float]) -> bool:
    return len(ours) == len(theirs) and all(
        math.isclose(one, other, rel_tol=1e-3) for one, other in zip(ours, theirs, strict=True)
    )


def _numbers(pattern: str, text: str) -> list[float]:
    return [float(value) for value in re.findall(pattern, text, re.MULTILINE)]


def _words(words: tuple[str, ...], row: Row, folder: Path) -> list[str]:
    script = [str(SCRIPTS / row.script)] if row.script else []
    return script + [f"{folder}/{word[2:]}" if word.startswith("@/") else word for word in words]


def _command(row: Row, folder: Path, report: Path) -> list[str]:
    words = _words(row.command, row, folder)
    if row.recovery:
        return [sys.executable, str(RECOVERY / "every_death.py"), str(RECOVERY / row.recovery), *words]
    run = [sys.executable, "-m", "windtunnel", "run", "--host", HOST, "--gpus", row.gpus, *row.options]
    if row.tests:
        return [sys.executable, "-m", *PYTEST, "--gpus", row.gpus, *words]
    return [*run, "--report", str(report), *words]


def _variables(row: Row, folder: Path) -> dict[str, str]:
    own = {name: f"{folder}/{value[2:]}" if value.startswith("@/") else value for name, value in row.variables.items()}
    # This checkout is what is tried, also where the environment has another one installed.
    paths = (str(ROOT / "src"), own.get("PYTHONPATH"), *folders_of(row.packages))
    own["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    # Nothing is to be downloaded; one thread a process, as torchrun sets it.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))  # for `accelerate launch`
    fixed = {"PATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
    return {**os.environ, **fixed, **own}


def _execute(
    command: list[str], variables: dict[str, str], folder: Path, row: Row, log: Path, patience: float
) -> tuple[int | None, str]:
    """The exit code, None when the time was up, and the output; a program with `until` is stopped when it is met."""
    child = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        # A shell that runs us in the background has Ctrl-C ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        _end(child)

    timer = threading.Timer(row.minutes * 60 * patience, expire)
    timer.start()
    lines: list[str] = []
    stopped = False
    try:
        assert child.stdout is not None
        with log.open("w", encoding="utf-8", buffering=1) as file:
            for line in child.stdout:
                lines.append(line)
                file.write(line)
                if row.until and not stopped and re.search(row.until, line):
                    stopped = True
                    child.send_signal(signal.SIGINT)
        code = child.wait()
    finally:
        timer.cancel()
        _end(child)
    return (None if expired.is_set() else code), "".join(lines)


def _end(child: subprocess.Popen[str]) -> None:
    """End a program that still runs, and what it started: ranks have sessions of their own."""
    if child.poll() is not None:
        return
    started = psutil.Process(child.pid).children(recursive=True)
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_S)
    child.kill()
    child.wait()
    for process in started:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _judge(row: Row, code: int, output: str) -> Outcome:
    wanted = row.until or row.prints
    met = re.search(wanted, output) is not None
    if met and row.until:
        return Outcome("runs", "stopped after a few steps")
    if met and code == 0:
        return Outcome("runs")
    errors = [one for one in ERROR.findall(output) if "ChildFailedError" not in one]
    errors = [*ABORT.findall(output), *errors]
    reason = errors[-1].strip() if errors else f"it ended with exit code {code}"
    if not errors and code == 0:
        reason = f"the output has nothing like {wanted!r}"
    return Outcome("fails", _short(reason))


def _judge_tests(row: Row, output: str) -> Outcome:
    """What pytest counted: the tests that fail must be those of the row's `bugs`, and no others."""
    counts = _counts(output)
    unpassed = set(UNPASSED.findall(output))
    if "passed" not in counts:
        return Outcome("fails", _short((ERROR.findall(output) or ["no test ran"])[-1]))
    told = _told(counts) + (" as on a GPU" if row.bugs else "")
    if unpassed - row.bugs.keys() or len(unpassed) != counts.get("failed", 0) + counts.get("error", 0):
        return Outcome("fails", _told(counts))
    if healed := sorted(row.bugs.keys() - unpassed):
        return Outcome("fails", f"{_told(counts)}; {', '.join(healed)} should fail")
    return Outcome("runs", told)


def _without_gpus(row: Row, outcome: Outcome, folder: Path, log: Path, patience: float) -> None:
    """Run the same tests without windtunnel: what is tested of them on a machine that has no GPU."""
    command = [sys.executable, "-m", *PYTEST, *_words(row.command, row, folder)]
    _, plain = _execute(command, _variables(row, folder), folder, row, log.with_suffix(".cpu.log"), patience)
    outcome.reason += f"; without GPUs {_told(_counts(plain)) or 'no test runs'}"


def _counts(output: str) -> dict[str, int]:
    last = (SUMMARY.findall(output) or [""])[-1]
    return {word: int(number) for number, word in COUNTED.findall(last)}


def _told(counts: dict[str, int]) -> str:
    order = ("passed", "skipped", "failed", "error")
    return ", ".join(f"{counts[word]:,} {word}" for word in order if word in counts)


def _short(text: str, length: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def _read(report: dict[str, Any], outcome: Outcome) -> None:
    """What the report of a run says of time, memory and findings."""
    lengths = [step["end_ns"] - step["start_ns"] for step in report["steps"][1:]]
    if lengths:
        outcome.step = _duration(statistics.median(lengths))
    peaks = [device["peak_allocated_bytes"] for device in report["devices"]]
    if peaks:
        outcome.peak = f"{max(peaks) / 2**20:,.1f} MiB"
    codes: dict[str, int] = {}
    for finding in report["findings"]:
        if finding["severity"] != "info":
            codes[finding["code"]] = codes.get(finding["code"], 0) + 1
    outcome.findings = ", ".join(f"{code} ×{n}" if n > 1 else code for code, n in sorted(codes.items())) or "none"


def _duration(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds / 1e3:.3g} µs"


# ---------------------------------------------------------------------- the page


SECTIONS = {
    "equal": "Run, with losses equal to the CPU's or the uncompiled program's",
    "runs": "Run, and do what they should",
    "fails": "Fail",
}


def page(rows: Mapping[str, Mapping[str, str]]) -> str:
    """docs/programs.md: the programs by outcome, and of those that fail what happened."""
    names: dict[str, list[str]] = {section: [] for section in SECTIONS}
    for row in rows.values():
        name = row["program"] + (f" ({row['gpus']})" if row["gpus"][0].isdigit() else "")
        if row["outcome"].startswith("fails"):
            names["fails"].append(f"\n- {name}: {row['outcome'].removeprefix('fails: ')}")
        else:
            equal = " equal to the " in row["outcome"] or row["what"].endswith("equal to the CPU's")
            names["equal" if equal else "runs"].append(name)
    parts = [
        f"## {title}\n\n" + ("" if key == "fails" else "; ").join(names[key]).lstrip()
        for key, title in SECTIONS.items()
    ]
    return HEAD + "\n\n".join(part for part in parts if not part.endswith("\n\n")) + "\n"


def entry(row: Row, outcome: Outcome, sources: Path | None = None) -> dict[str, str]:
    """A program's figures."""
    found = [f"{name} {version_of(name) or ''}".strip() for name in row.packages]
    commit = commit_of(sources / row.checkout.split("/")[1]) if sources is not None and row.checkout else ""
    origin = [f"{row.checkout}@{commit}" if commit else row.checkout] if row.checkout else []
    return {
        "program": row.name,
        "what": row.what,
        "gpus": row.gpus,
        "torch": importlib.metadata.version("torch"),
        "packages": ", ".join([*origin, *found]) or "-",
        "outcome": str(outcome),
        "step": outcome.step or "-",
        "peak": outcome.peak or "-",
        "findings": outcome.findings or "-",
    }


def write(results: dict[str, tuple[Row, Outcome]], sources: Path | None = None) -> None:
    """Write the figures and the page; programs that were not run now keep what an earlier run left there."""
    known = {row["program"]: key for key, row in figures.load("programs")["rows"].items()}
    ran = {
        known.get(row.name, re.sub(r"[^\w-]+", "-", row.name.lower()).strip("-")): entry(row, outcome, sources)
        for row, outcome in results.values()
        if outcome.word != IDLE
    }
    figures.record("programs", ran)
    PAGE.write_text(page(figures.load("programs")["rows"]), encoding="utf-8")


def main() -> int:
    """Run what the command line asks for; the exit status."""
    parser = argparse.ArgumentParser(description="Run programs that others wrote on emulated GPUs.")
    parser.add_argument("--sources", type=Path, metavar="DIR", help="a folder with git checkouts, by repository name")
    parser.add_argument("--clone", action="store_true", help="clone from GitHub what the folder of --sources lacks")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="programs whose names contain these")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument(
        "--logs", type=Path, default=ROOT / "logs" / "programs", help="where each program's output goes"
    )
    parser.add_argument("--patience", type=float, default=1.0, metavar="X", help="multiply every time-out by this")
    options = parser.parse_args()
    every, versions = rows()
    chosen = [row for row in every if not options.only or any(word in row.name for word in options.only)]
    if options.list or not chosen:
        print("\n".join(row.name for row in every))
        return 0 if options.list else 2
    if options.sources is not None and not options.sources.is_dir():
        parser.error(f"--sources {options.sources}: there is no such folder")
    if options.clone and options.sources is None:
        parser.error("--clone needs --sources DIR, where the clones go")
    options.logs.mkdir(parents=True, exist_ok=True)
    results: dict[str, tuple[Row, Outcome]] = {}
    begin = time.monotonic()
    try:
        _run_all(chosen, versions, options, results)
    except KeyboardInterrupt:
        print(f"\nStopped after {_counted(results)}; docs/programs.md has what was done.", file=sys.stderr)
        return 130
    _conclude(results, options.logs, time.monotonic() - begin)
    return 0 if all(outcome.good for _, outcome in results.values()) else 1


def _run_all(
    chosen: list[Row],
    versions: dict[str, str],
    options: argparse.Namespace,
    results: dict[str, tuple[Row, Outcome]],
) -> None:
    """Fetch what is missing, then run one row after the other; `results` and the page grow with each."""
    refused = {}
    if options.clone:
        refused = clone(sorted({row.checkout for row in chosen if row.checkout}), options.sources)
    refused |= install([row.packages for row in chosen], versions)
    for row in chosen:
        missing = [refused[name] for name in (*row.packages, row.checkout) if name in refused]
        begin = time.monotonic()
        outcome = (
            Outcome(IDLE, missing[0])
            if missing
            else run(row, options.sources, log_of(row, options.logs), options.patience)
        )
        results[row.name] = row, outcome
        if outcome.word != IDLE:
            told = [outcome.step and f"step {outcome.step}", outcome.peak and f"peak {outcome.peak}", outcome.findings]
            took = f"({time.monotonic() - begin:.0f} s)"
            print(f"{row.name:48} {row.gpus:7} {outcome}", *filter(None, told), took, sep="  ", flush=True)
        write(results, options.sources)


def log_of(row: Row, logs: Path) -> Path:
    """Where a program's output goes."""
    return logs / (re.sub(r"[^\w.-]+", "-", row.name) + ".log")


def _counted(results: dict[str, tuple[Row, Outcome]]) -> str:
    ran = [outcome for _, outcome in results.values() if outcome.word != IDLE]
    return f"{len(ran)} programs, of which {sum(not outcome.good for outcome in ran)} failed"


def _conclude(results: dict[str, tuple[Row, Outcome]], logs: Path, seconds: float) -> None:
    """The last lines: how many ran, where the output of those that failed is, and why others did not run."""
    print(f"\n{_counted(results)}, in {seconds / 60:.0f} minutes; docs/programs.md has the table")
    for row, outcome in results.values():
        if not outcome.good:
            print(f"failed: {row.name}: its output is in {log_of(row, logs)}")
    reasons: dict[str, list[str]] = {}
    for row, outcome in results.values():
        if outcome.word == IDLE:
            reasons.setdefault(outcome.reason, []).append(row.name)
    for reason, names in reasons.items():
        print(f"not run ({len(names)}): {reason}: {', '.join(names)}")


if __name__ == "__main__":
    sys.exit(main())
