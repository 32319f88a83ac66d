"""What an operation walks through in steady state: calls of windtunnel's functions, and changes from file to file.

`python -m tools.walks` (`make walks`) prints them beside the aims; fewer are easier to follow, and to keep fast.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import windtunnel

PACKAGE = str(Path(windtunnel.__file__).parent) + os.sep
GAPS = os.path.join("state", "host_work.py")
"""What looks at long gaps between operators, which there are since a profiler is slow."""
FEW = 5
WARM = 300
"""So often an operation runs before it is counted: its plan, price and memory are known then, and races of streams are
looked at no more where the program has shown none."""


class Walk(NamedTuple):
    """Calls of the package's functions, and how often one lies in another file than the one before."""

    calls: int
    changes: int


class Aim(NamedTuple):
    """What is counted, and the most that it should walk."""

    what: str
    calls: int
    changes: int | None


AIMS = (
    Aim("torch.ones", 24, 18), Aim(".to('cuda:1')", 42, 28), Aim(".item()", 30, None), Aim("all_reduce", 95, 45),
)  # fmt: skip


def walked(operation: Callable[[], object]) -> Walk:
    """The shortest of a few calls of an operation that has run before: a busy machine has gaps that are looked at."""
    for _ in range(WARM):
        operation()
    return min(_walked(operation) for _ in range(FEW))


def _walked(operation: Callable[[], object]) -> Walk:
    files: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(PACKAGE) and not file.endswith(GAPS):
            files.append(file)

    sys.setprofile(note)
    try:
        operation()
    finally:
        sys.setprofile(None)
    return Walk(len(files), sum(one != other for one, other in pairwise(files)))


def measure() -> None:
    """Print what each operation walks, as rank 0 of two under emulation."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    x, number = torch.ones(16, device="cuda"), torch.ones((), device="cuda")
    there = torch.device("cuda", 1 - dist.get_rank())
    operations = {
        "torch.ones": lambda: torch.ones(16, device="cuda"),
        ".to('cuda:1')": lambda: x.to(there),
        ".item()": lambda: number.item(),
        "all_reduce": lambda: dist.all_reduce(x),
    }
    for what, operation in operations.items():
        found = walked(operation)
        if dist.get_rank() == 0:
            print(f"{what}\t{found.calls}\t{found.changes}", flush=True)
    dist.destroy_process_group()


def found() -> dict[str, Walk]:
    """What each operation walks.

    Raises:
        RuntimeError: the program that walks has failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "windtunnel", "run", "--gpus", "2xH100", "--nproc-per-node", "2", __file__],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    rows = [line.split("\t") for line in done.stdout.splitlines() if line.count("\t") == 2]
    if len(rows) != len(AIMS):
        raise RuntimeError(f"the operations did not run:\n{done.stderr}")
    return {what: Walk(int(calls), int(changes)) for what, calls, changes in rows}


def main() -> None:
    """Print the walks beside the aims."""
    walks = found()
    print(f"{'operation':16} {'calls':>5} {'aim':>5}   {'changes of file':>15} {'aim':>5}")
    for what, calls, changes in AIMS:
        walk = walks[what]
        print(f"{what:16} {walk.calls:5} {calls:5}   {walk.changes:15} {'' if changes is None else changes:>5}")


if __name__ == "__main__":
    if "RANK" in os.environ:
        measure()
    else:
        main()
