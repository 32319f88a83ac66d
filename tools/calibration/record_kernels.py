"""Record what the kernels of `make hardware` are to the cost model, beside what a GPU took for them.

    python tools/calibration/record_kernels.py tests/conformance/hardware/2026-11-26-H100-80GB-HBM3.json
        # in an environment with the result's PyTorch

Each call of `tools/hardware/kernels/` runs once without data on the emulated GPU, and its signatures are written beside
the microseconds that the result has for it: `kernels_GENERATION.json.gz`, which `calibrate_neighbours.py` fits.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools" / "calibration"), str(ROOT / "tools")]

import record_steps  # noqa: E402
from hardware import kernels  # noqa: E402

import windtunnel  # noqa: E402
from windtunnel import gpus  # noqa: E402

FOLDER = Path(__file__).resolve().parent


def record(result: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each call that the result has a time of."""
    import torch

    native = result["stages"]["families"]["native"]
    rows = []
    for family, table in kernels.families().items():
        with windtunnel.emulate(result["emulated_as"], no_data=True, assume=1) as session:
            for name, call in table(False):
                if (us := native.get(family, {}).get(name)) is None:
                    continue
                call()  # what only the first call does (workspaces, plans) is not part of it
                torch.cuda.synchronize()
                begin = len(session.trace)
                call()
                torch.cuda.synchronize()
                signatures, order = record_steps.work(session.trace, begin)
                rows.append({"family": family, "name": name, "us": us, "signatures": signatures, "order": order})
    return rows


def main() -> None:
    result = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    gpu = gpus.find(result["emulated_as"])
    path = FOLDER / f"kernels_{gpu.generation}.json.gz"
    head = {"gpu": gpu.key, "torch": result["versions"]["torch"], "driver": result["driver"], "date": result["date"]}
    lines = [json.dumps(one) for one in (head, *record(result))]
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    print(f"wrote {path}: {len(lines) - 1} calls")


if __name__ == "__main__":
    main()
