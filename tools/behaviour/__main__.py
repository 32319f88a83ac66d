"""`make behaviour`: what about thirty programs do under emulation, recorded, or held byte for byte to a record.

    python -m tools.behaviour record FOLDER
    python -m tools.behaviour compare FOLDER
    python -m tools.behaviour twice               # `make determinism`: the same program gives the same bytes

Recorded of each program: its output, its trace of each rank, and its report, without what it measured. Record before a
change of the code's structure, compare after it: a difference that was not meant is a fault. The traces hold the lines
of the programs, which are therefore always written to the same folder.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from tests.checks import corpus

HERE = Path(__file__).parent
PAGES = (
    "accumulation-and-clipping",
    "activation-checkpointing",
    "amp-scaler-unfused",
    "autograd-on-side-stream",
    "boolean-mask",
    "checkpoint-by-side-stream",
    "copy-stream-with-both-waits",
    "csan-example",
    "data-parallel-small-batch",
    "ddp-set-up-right",
    "ddp-without-sampler",
    "freed-in-use",
    "generation-with-cache",
    "graph-input-overwritten",
    "graphed-callables",
    "half-precision",
    "loss-item-each-step",
    "model-on-two-devices",
    "offload-to-the-host",
    "optimizer-one-by-one",
    "out-of-memory",
    "packed-sequences",
    "pinned-double-buffer-to-host",
    "profiled-steps",
    "prefetcher",
    "s3-streams-without-wait",
    "stale-read",
    "there-and-back",
    "transfer-stream-race",
    "whole-step-graph",
)
"""The pages of tests/checks/pages whose programs run here."""
SHARED_FOLDER = Path(tempfile.gettempdir()) / "windtunnel-behaviour"
"""Where programs run: the same for all records, since traces name the file. One run has it at a time."""
MEASURED = ("host", "verdict", "why", "next")
"""What a report says of this machine: the host's work, which its first sentences weigh."""


@dataclass(frozen=True)
class Program:
    """A program and how it is run: the GPUs' specification and the number of ranks."""

    name: str
    text: str
    gpus: str
    ranks: int = 1
    history: bool = False


def programs() -> Iterator[Program]:
    """The programs, those of pages first."""
    for name in PAGES:
        page = corpus.read(corpus.PAGES / f"{name}.md")
        text = "import torch; torch.manual_seed(0)" + page.program  # which begins with empty lines
        yield Program(name, text, page.gpus, page.ranks, page.history)
    for path in sorted((HERE / "programs").glob("*.py")):
        ranks = 2 if path.stem.startswith("ranks_") else 1
        yield Program(path.stem, path.read_text("utf-8"), "2xV100", ranks)


def run(program: Program, folder: Path, hashes: str = "0") -> None:
    """Run a program and leave its output, traces and findings in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with alone():
        _run(program, folder, hashes)


@contextmanager
def alone() -> Iterator[None]:
    """Wait until nobody else runs programs in the shared folder: another checkout has other programs of these names."""
    SHARED_FOLDER.mkdir(exist_ok=True)
    with (SHARED_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(program: Program, folder: Path, hashes: str) -> None:
    file = SHARED_FOLDER / f"{program.name.replace('-', '_')}.py"
    file.write_text(program.text, "utf-8")
    command = [str(Path(sys.executable).with_name("windtunnel")), "run", "-q", "--gpus", program.gpus]
    command += ["--trace", str(folder / "trace.gz"), "--report", str(folder / "report.json")]
    command += ["--memory-history"] if program.history else []
    command += ["--nproc-per-node", str(program.ranks)] if program.ranks > 1 else []
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONHASHSEED=hashes)
    done = subprocess.run(
        [*command, str(file)], cwd=SHARED_FOLDER, env=environment, capture_output=True, text=True, check=False
    )
    (folder / "output.txt").write_text(
        f"exit code {done.returncode}\n{sorted_lines(done.stdout, program.ranks)}", "utf-8"
    )
    report = folder / "report.json"
    if report.exists():
        told = {key: value for key, value in json.loads(report.read_text("utf-8")).items() if key not in MEASURED}
        text = json.dumps(told, indent=1, sort_keys=True).replace(str(folder), "FOLDER")  # commands name it
        report.write_text(text, "utf-8")
    for trace in folder.glob("*.gz"):
        trace.with_suffix("").write_bytes(gzip.decompress(trace.read_bytes()))
        trace.unlink()


def twice(chosen: list[Program]) -> bool:
    """Run each program twice, under other seeds of Python's hashes, and say which differ; whether none does."""
    same = 0
    for program in chosen:
        with tempfile.TemporaryDirectory(prefix="windtunnel-") as temporary:
            for seed in ("1", "2"):
                run(program, Path(temporary) / seed, seed)
            found = differences(Path(temporary) / "1", Path(temporary) / "2")
            print(f"{program.name}: {'differs in ' + ', '.join(found) if found else 'the same bytes'}", flush=True)
            same += not found
    print(f"{same} of {len(chosen)} programs give the same output, traces and findings twice")
    return same == len(chosen)


def sorted_lines(text: str, ranks: int) -> str:
    """A program's output; of several ranks, whose lines arrive in any order, in order."""
    text = re.sub(r"0x[0-9a-f]{6,}", "0x", text)
    return text if ranks == 1 else "\n".join(sorted(text.splitlines())) + "\n"


def differences(before: Path, after: Path) -> list[str]:
    """The names of the files in which two records of a program differ."""
    names = {path.name for folder in (before, after) for path in folder.iterdir()}
    return sorted(name for name in names if content(before / name) != content(after / name))


def content(path: Path) -> bytes | None:
    """A file's bytes; None when there is none."""
    return path.read_bytes() if path.exists() else None


@click.command()
@click.argument("task", type=click.Choice(["record", "compare", "twice"]))
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--only", multiple=True, help="Programs whose names hold this text; may be repeated.")
def main(task: str, folder: Path | None, only: tuple[str, ...]) -> None:
    """Record what the programs do in FOLDER, compare it with what FOLDER holds, or run them twice."""
    chosen = [program for program in programs() if not only or any(text in program.name for text in only)]
    if task == "twice":
        sys.exit(not twice(chosen))
    if folder is None:
        raise click.UsageError("name a folder")
    if task == "record":
        for program in chosen:
            run(program, folder / program.name)
        print(f"{len(chosen)} programs recorded in {folder}")
        return
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="windtunnel-") as temporary:
        for program in chosen:
            run(program, Path(temporary) / program.name)
            found = differences(folder / program.name, Path(temporary) / program.name)
            if found:
                wrong += 1
                kept = folder.with_name(f"{folder.name}-differs") / program.name
                kept.parent.mkdir(exist_ok=True)
                subprocess.run(["cp", "-r", str(Path(temporary) / program.name), str(kept.parent)], check=True)
                print(f"{program.name} differs in {', '.join(found)}: {kept}")
    print(f"{len(chosen) - wrong} of {len(chosen)} programs do what was recorded")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
