"""What a step of small compiled programs costs on this machine: PyTorch's own part of it, and that of the emulation.

    python -m benchmarks.bench_compiled [--rounds N] [--only NAME] [--record]

The documents' programs (`tools/programs/scripts/document.py`), each in five forms: on plain CPU, compiled there by the
backend "aot_eager" (the same graphs, guards and autograd wrappers, and the CPU's operators) and by Inductor, emulated
without torch.compile, and emulated and compiled. Each round runs the forms one after another, each in processes of its
own with one thread; of a form's steps the median of the second half counts, in processor and in real time. The table
has the first form's milliseconds and the others' ratios to it, medians of the rounds. It needs a C++ compiler and
Triton.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from tools.docs import figures

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tools" / "programs" / "scripts" / "document.py"
COLUMNS = ("aot", "inductor", "emulated", "compiled")  # of the forms after the first one, in the figures
SECONDS = re.compile(r"seconds a step: processor ([\d.]+), real ([\d.]+)")


class Program(NamedTuple):
    """Words for `document.py`, the GPUs that it is emulated on, and its processes."""

    words: tuple[str, ...]
    gpus: str
    processes: int = 1


PROGRAMS = {
    "Trainer": Program(("trainer",), "2xV100"),
    "two hidden layers": Program(("housing",), "V100"),
    "DataParallel": Program(("housing",), "2xV100"),
    "DistributedDataParallel": Program(("ddp", "--epochs", "20"), "2xV100", 2),
    "character_gpt.py": Program(("characters", "--steps", "40"), "V100"),
}
CPU, EMULATED = "CPU", "emulated"
FORMS = {
    "CPU": (CPU, ()),
    "aot_eager": (CPU, ("compiled=aot_eager",)),
    "Inductor": (CPU, ("compiled",)),
    "emulated": (EMULATED, ()),
    "emulated, compiled": (EMULATED, ("compiled",)),
}
"""Where each form runs, and its further words."""


class Step(NamedTuple):
    """Seconds of a step, in processor and in real time."""

    processor: float
    real: float


def measured(program: Program, form: str, folder: str) -> Step:
    """A step of the slowest of a program's processes; `folder` keeps what Inductor compiles."""
    where, words = FORMS[form]
    ranks = ["--nproc-per-node", str(program.processes)] if program.processes > 1 else []
    if where == EMULATED:
        launcher = ["-m", "windtunnel", "run", "--gpus", program.gpus, *ranks]
    else:
        launcher = ["-m", "torch.distributed.run", "--standalone", *ranks] if ranks else []
    name, *rest = program.words
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    variables = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
    command = [sys.executable, *launcher, str(SCRIPT), name, *words, *rest]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, errors="replace"
    )
    found = [Step(*map(float, one)) for one in SECONDS.findall(done.stdout)]
    if done.returncode or not found:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return max(found)


def compare(name: str, program: Program, rounds: int, folder: str) -> dict[str, str]:
    """Print a program's rows, of its processor time and of its real time; both as the figures have them."""
    told: dict[str, list[str]] = {column: [] for column in COLUMNS}
    steps = [{form: measured(program, form, folder) for form in FORMS} for _ in range(rounds)]
    for kind, time in enumerate(Step._fields):
        plain = statistics.median(one["CPU"][kind] for one in steps) * 1e3
        ratios = [statistics.median(one[form][kind] / one["CPU"][kind] for one in steps) for form in FORMS]
        columns = "".join(f"{ratio:>{len(form) + 2}.2f}" for form, ratio in list(zip(FORMS, ratios, strict=True))[1:])
        print(f"{name:24} {time:9} {plain:6.2f} ms{columns}", flush=True)
        for column, ratio in zip(COLUMNS, ratios[1:], strict=True):
            told[column].append(f"{ratio:.2f}")
    return {"program": name} | {column: " / ".join(both) for column, both in told.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds a program (5)")
    parser.add_argument("--only", default="", help="a part of the names of programs")
    parser.add_argument("--record", action="store_true", help="write docs/figures/compiled-overhead.json")
    options, rows = parser.parse_args(), {}
    chosen = {name: program for name, program in PROGRAMS.items() if options.only in name}
    if not chosen:
        parser.error(f"no program's name contains {options.only!r}: choose among {', '.join(PROGRAMS)}")
    print(f"torch {torch.__version__}, 1 thread a process, {options.rounds} interleaved rounds, medians")
    print(f"{'program':24} {'time':9} {'CPU':>9}" + "".join(f"  {form}" for form in list(FORMS)[1:]), flush=True)
    known = figures.load("compiled-overhead")["rows"]
    with tempfile.TemporaryDirectory(prefix="windtunnel-compiled-", ignore_cleanup_errors=True) as folder:
        for name, program in chosen.items():
            key = next((key for key, row in known.items() if row["program"] == name), name)
            rows[key] = compare(name, program, options.rounds, folder)
    if options.record:
        figures.record("compiled-overhead", rows)


if __name__ == "__main__":
    main()
