"""A test of recovery for a program: every rank dies once at every step, and the final weights are equal bit for bit.

    python examples/recovery/every_death.py examples/recovery/accelerate_training.py --steps 4

The program trains on two ranks, keeps checkpoints in the folder that `CHECKPOINTS` names, goes on from the last one
when it is started again, and prints "weights" and a hash on each rank at its end. torchrun starts the ranks again after
a death.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

RUN = ["windtunnel", "run", "-q", "--gpus", "2xA100", "--nproc-per-node", "2", "--max-restarts", "1"]


def weights(program, *options):
    """The hashes that a training prints which starts without checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", *RUN, *options, program],
            env={**os.environ, "CHECKPOINTS": folder}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    return re.findall(r"weights (\w+)", done.stdout), done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--only", nargs="*", type=int, help="some of the steps")
    chosen = parser.parse_args()
    plain, errors = weights(chosen.program)
    if len(plain) != 2:
        sys.exit(f"without a fault it printed {plain}: {errors}")
    steps = chosen.only or range(1, chosen.steps + 1)
    deaths = [f"die:rank={rank},step={step},restart=0" for rank in (0, 1) for step in steps]
    lost = 0
    for death in deaths:
        found, errors = weights(chosen.program, "--fault", death)
        if "exitcode: -9" not in errors:
            sys.exit(f"{death}: no rank died, since the program takes fewer steps: --steps, --only")
        if found != plain:
            lost += 1
            print(f"{death}: {found}, not {plain}\n{errors[-2000:]}")
    print(f"{len(deaths)} deaths, {lost} of them changed the final weights or ended the training")
    sys.exit(bool(lost))


if __name__ == "__main__":
    main()
