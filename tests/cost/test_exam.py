"""The clock's exam leaves out what judges the clock, and reads programs and times as KernelBench has them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tools.exam import kernelbench, others
from tools.exam.kernelbench import Edition

PROGRAM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.rand(4096, 16384)]

def get_init_inputs():
    return []
"""
NAMES = ("level1/19_ReLU", "level1/20_LeakyReLU", "level2/1_Conv2D_ReLU")


def commit(checkout: Path) -> None:
    """Keep all that lies there."""
    git = ["git", "-C", str(checkout), "-c", "user.name=n", "-c", "user.email=e@e"]
    for command in (["add", "."], ["commit", "-qm", "all", "--no-verify"]):
        subprocess.run([*git, *command], check=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with three programs, their times on an H100, and an edition that is its only commit."""
    for name in NAMES:
        file = tmp_path / "KernelBench" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(PROGRAM)
    times = {level: {} for level in ("level1", "level2")}
    for level, name in (name.split("/") for name in NAMES):
        times[level][f"{name}.py"] = {"mean": 0.2}
    folder = tmp_path / "results/timing/one"
    folder.mkdir(parents=True)
    (folder / "baseline_time_torch.json").write_text(json.dumps(times))
    subprocess.run(["git", "-C", str(tmp_path), "init", "-q"], check=True)
    commit(tmp_path)
    monkeypatch.setattr(kernelbench, "EDITIONS", (Edition("HEAD", True, (12, 8), {"one": "H100"}),))
    return tmp_path


def test_only_what_may_be_looked_at_is_run(checkout: Path) -> None:
    ((program, one, *_),) = kernelbench.outcomes(checkout, "", "", False)
    assert (program.level, program.number, program.family) == (1, 19, "element-wise")
    assert one.published == 0.2
    assert one.predicted == pytest.approx(0.2, rel=0.2)  # 512 MiB at some 2.7 TB/s


def test_a_program_is_as_it_was_when_it_was_timed(checkout: Path) -> None:
    (checkout / "KernelBench" / "level1" / "19_ReLU.py").write_text(PROGRAM.replace("4096", "8192"))
    commit(checkout)
    ((_, one, *_),) = kernelbench.outcomes(checkout, "", "", False)
    assert one.predicted == pytest.approx(0.2, rel=0.2)


def test_all_are_on_request(checkout: Path) -> None:
    found = [(program.level, program.number) for program, *_ in kernelbench.outcomes(checkout, "H1", "ReLU", True)]
    assert found == [(1, 19), (1, 20), (2, 1)]
    assert not list(kernelbench.outcomes(checkout, "A100", "", True))


def test_a_checkout_without_its_history_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        SystemExit, match=f"^{tmp_path} is no clone of KernelBench with its whole history .*clone it anew$"
    ):
        list(kernelbench.outcomes(tmp_path, "", "", False))


@pytest.mark.parametrize(
    "program",
    [
        "cross-entropy full", "jensen-shannon full", "layer-norm full", "fused-rms-norm full", "rms-norm full",
        "add-rms-norm full", "sparsemax full", "chunked-swiglu full", "swiglu full", "geglu backward",
        "linear-cross-entropy full", "total-variation full",
    ],
)  # fmt: skip
def test_layers_of_language_models_peak_where_a_library_printed(program: str) -> None:
    """The smallest of each program that linkedin/Liger-Kernel measured, on the first of its GPUs."""
    row = next(row for row in others.read() if row.program == program and row.unit == others.PEAK)
    assert others.peak(row).ratio == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("program", ["layer-norm forward", "cross-entropy full", "total-variation backward"])
def test_layers_of_language_models_take_as_long_as_a_library_printed(program: str) -> None:
    rows = [row for row in others.read() if row.program == program and row.gpu in ("A100-SXM4-80GB", "H100")]
    found = [others.outcome(row).ratio for row in rows if row.unit != others.PEAK]
    assert sorted(found)[len(found) // 2] == pytest.approx(1.0, abs=0.1)
