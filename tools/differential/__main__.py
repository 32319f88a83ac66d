"""Random and recorded cases on emulated GPUs beside plain PyTorch: `make differential`, `make differential-...`.

    python -m tools.differential operators [--refusals]    # PyTorch's databases, and random programs
    python -m tools.differential compiled                  # random functions, compiled and not
    python -m tools.differential kernels                   # random Triton kernels, with a fault and without
    python -m tools.differential cuda                      # random CUDA C++ kernels, with a fault and without
    python -m tools.differential nodata                    # random trainings, with data and without
    python -m tools.differential trainer                   # the Trainer beside a handwritten loop

Each has options of its own (`--help`), and exits with 1 where anything differs that nothing explains.
"""

from __future__ import annotations

import sys
from importlib import import_module

WHAT = {
    "operators": "tools.differential.database",
    "compiled": "tools.differential.compiled",
    "kernels": "tools.differential.kernels",
    "cuda": "tools.differential.cuda",
    "nodata": "tools.differential.nodata",
    "trainer": "tools.differential.trainer.command",
}


def main() -> int:
    """Compare what the first word says."""
    if len(sys.argv) < 2 or sys.argv[1] not in WHAT:
        print(__doc__, file=sys.stderr)
        return 2
    found: int = import_module(WHAT[sys.argv[1]]).main(sys.argv[2:])
    return found


if __name__ == "__main__":
    sys.exit(main())
