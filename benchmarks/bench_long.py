"""Memory of a long run and of its report, and how long the report takes: `make bench-long`.

    python -m benchmarks.bench_long                   # 100,000, 1 and 5 million operators; --record writes the figures
    python -m benchmarks.bench_long 20000 --allocate  # another number, and a temporary tensor in each step

A step is 24 operators in place on a small tensor and `optimizer.step()`, which is one: no step frees or takes memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.docs import figures

FIGURES = {100_000: "100k", 1_000_000: "million", 5_000_000: "5 million"}
STEP = 25
PROGRAM = """
import json, resource, sys, time
import torch

steps, allocate, told = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
x = torch.ones(64, device="cuda")
w = torch.ones(64, device="cuda", requires_grad=True)
w.grad = torch.ones(64, device="cuda")
optimizer = torch.optim.SGD([w], lr=1e-3)
begin = time.process_time()
for _ in range(steps):
    for _ in range(12):
        x.add_(1.0)
        x.mul_(0.5)
    if allocate:
        y = x + 1
    optimizer.step()
torch.cuda.synchronize()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open(told, "w") as file:
    json.dump({"peak": peak >> 10, "loop": time.process_time() - begin, "all": time.process_time()}, file)
"""


def measure(operators: int, allocate: bool = False) -> dict[str, int]:
    """One run: peaks in MiB of the program and of any process; processor seconds of the loop, and of all after it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "loop.py").write_text(PROGRAM, encoding="utf-8")
        command = [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "A100", "--report", "out.html", "loop.py"]
        command += [str(operators // STEP), str(int(allocate)), "told.json"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=folder, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        told = json.loads((folder / "told.json").read_text(encoding="utf-8"))
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {
            "operators": operators,
            "steps": operators // STEP,
            "program": told["peak"],
            "most": after.ru_maxrss >> 10,
            "loop": round(told["loop"]),
            "report": round(used - told["all"]),
        }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", type=int, default=list(FIGURES))
    parser.add_argument("--allocate", action="store_true", help="a temporary tensor in each step")
    parser.add_argument("--record", action="store_true", help="write docs/figures/long-runs.json")
    options = parser.parse_args()
    for operators in sorted(options.numbers):  # the peak of any process is that of all runs so far
        found = measure(operators, options.allocate)
        print(*(f"{name} {value:,}" for name, value in found.items()), sep=", ", flush=True)
        if options.record and operators in FIGURES:
            figures.record("long-runs", {FIGURES[operators]: found})


if __name__ == "__main__":
    main()
