"""`python -m windtunnel.demo`: a book's program for several GPUs, on two emulated V100, and a report of what it did.

The program is `housing_data_parallel.py` of the examples, as the book prints it. It writes a line for each batch on
each GPU, 1,200 in all, so they go to runs/demo.log; the terminal gets the first and the last few, and a bar meanwhile.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from windtunnel import examples
from windtunnel.cli import run
from windtunnel.errors import WindtunnelError
from windtunnel.reports.text import is_coloured

FIRST, LAST = 16, 3
STEP = "Outside: "
"""How the line begins that the program prints once a step."""
STEPS_PER_EPOCH = 4
PAUSE_S = 0.2


def main() -> int:
    """Run the demo; the exit status is the program's."""
    parser = argparse.ArgumentParser(prog="python -m windtunnel.demo", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gpus", default="2xV100", help="the GPUs to emulate  [default: 2xV100]")
    parser.add_argument("--epochs", type=int, default=100, help="[default: 100]")
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="where its files go  [default: runs]")
    options, others = parser.parse_known_args()
    folder: Path = options.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"windtunnel: {folder} cannot be made: {error.strerror}; name another --folder", file=sys.stderr)
        return 2
    log, report = folder / "demo.log", folder / "demo.html"
    program = examples.folder() / "housing_data_parallel.py"
    words = ["--gpus", options.gpus, "--report", str(report)]
    words += [str(program), "--logs", str(folder / "logs"), "--epochs", str(options.epochs), *others]
    os.environ.setdefault("PYTHONUNBUFFERED", "1")  # the bar follows the log
    print(f"training on {options.gpus}, EMULATED; what the program prints goes to {log}", flush=True)
    try:
        with log.open("wb") as file, Steps(log, options.epochs * STEPS_PER_EPOCH) as steps:
            output = run.Output(file, steps.end)
            code = run.command.main(words, "windtunnel run", obj=output, standalone_mode=False)
    except WindtunnelError as error:
        print(f"windtunnel: {error}", file=sys.stderr)
        return 2
    print(f"\nthe report with its timeline: {report}", flush=True)
    return int(code)


class Steps:
    """A bar on the terminal that follows the steps in a program's log while a `with` block lasts; then some lines."""

    def __init__(self, log: Path, steps: int) -> None:
        self.log = log
        self._ended = threading.Event()
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            TaskProgressColumn(),
            console=Console(file=sys.stderr),
            transient=True,
            disable=not is_coloured(sys.stderr),
        )
        self._task = self._bar.add_task("training", total=steps)
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Steps:
        self._bar.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Take the bar away and show the log's first and last lines."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        self._bar.stop()
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        if len(lines) > FIRST + LAST + 1:
            between = f"... {len(lines) - FIRST - LAST:,} lines ..."
            lines = [*lines[:FIRST], between, *lines[-LAST:]]
        print("\n".join(f"  {line}".rstrip() for line in lines), flush=True)

    def _follow(self) -> None:
        with self.log.open(encoding="utf-8", errors="replace") as file:
            while not self._ended.wait(PAUSE_S):
                done = sum(line.startswith(STEP) for line in file.readlines())
                self._bar.advance(self._task, done)


if __name__ == "__main__":
    sys.exit(main())
