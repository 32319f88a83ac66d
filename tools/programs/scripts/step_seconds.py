"""Run a program unchanged, and print how long the steps of its optimizers took on this machine.

    windtunnel run --gpus A100 step_seconds.py train.py --compile=True
    python step_seconds.py train.py --device=cpu

The program's own clock follows the emulated GPU; those here do not. What compiles has compiled in the first half of the
steps; of the others the median counts, since a program's batches need not be of one size.
"""

from __future__ import annotations

import atexit
import itertools
import runpy
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

from torch.optim.optimizer import register_optimizer_step_post_hook


class Spent(NamedTuple):
    """Seconds: of this process on the processor, and of the machine's clock."""

    processor: float
    real: float


def spent() -> Spent:
    """Seconds so far, by clocks that no emulation replaces."""
    return Spent(time.process_time(), time.clock_gettime(time.CLOCK_MONOTONIC))


def tell(ends: list[Spent]) -> None:
    """Print the seconds of a step, given those at the end of each."""
    late = ends[len(ends) // 2 :]
    if len(late) > 1:
        columns = list(zip(*late, strict=True))
        processor, real = (statistics.median(b - a for a, b in itertools.pairwise(one)) for one in columns)
        print(f"seconds a step: processor {processor:.6f}, real {real:.6f}", flush=True)


def measure_steps() -> None:
    """Print the seconds of a step of any optimizer when the process ends."""
    ends: list[Spent] = []
    register_optimizer_step_post_hook(lambda *_: ends.append(spent()))
    atexit.register(tell, ends)


if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    measure_steps()
    runpy.run_path(sys.argv[0], run_name="__main__")
