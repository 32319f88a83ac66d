"""Two ranks on one GPU: NCCL's error, or a run that lets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long
"""Each starts programs of its own."""

PROGRAM = Path(__file__).parent / "programs" / "one_gpu.py"


def run(folder: Path, *options: str) -> tuple[list[dict[str, Any]], Any]:
    """What the two ranks were told, and the findings of the run."""
    out, report = folder / "seen", folder / "report.json"
    start = [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "2xV100", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*start, *options, "--report", str(report), str(PROGRAM), str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in (0, 1)], json.loads(report.read_text())


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run as it is on hardware."""
    return run(tmp_path_factory.mktemp("refused"))


@pytest.mark.parametrize(("name", "when"), [("lazily", "used"), ("eagerly", "made")])
def test_nccl_refuses_it(refused: Any, name: str, when: str) -> None:
    for rank, seen in enumerate(refused[0]):
        raised, text, notes = seen[name]
        first, *others = text.split("\n")
        assert raised == when
        assert first.startswith("NCCL error in: ")
        assert ", invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2." in first
        assert others == [
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
            "Last error:",
            f"Duplicate GPU detected : rank {rank} and rank {1 - rank} both on CUDA device 1b000",
        ]
        assert "--share-gpus" in notes[0]


def test_it_is_an_error_in_the_report(refused: Any) -> None:
    assert {(one["code"], one["severity"]) for one in refused[1]["findings"]} >= {("shared-gpu", "error")}


def test_a_run_can_let_them(tmp_path: Path) -> None:
    seen, report = run(tmp_path, "--share-gpus")
    assert seen == [{"lazily": 3.0, "eagerly": 3.0}] * 2
    assert ("shared-gpu", "info") in {(one["code"], one["severity"]) for one in report["findings"]}
