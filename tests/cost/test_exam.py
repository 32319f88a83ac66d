"""The clock's exam leaves out what judges the clock, and reads programs and times as KernelBench has them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tools.corpus.outcomes import Outcome, parts_of
from tools.exam import kernelbench, others, scales
from tools.exam.kernelbench import Edition

from windtunnel import gpus
from windtunnel.cost import CostModel, files
from windtunnel.cost import scales as known_scales
from windtunnel.cost.sustained import Sustained
from windtunnel.trace.operation import Signature

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


def test_bands_of_a_gpu_are_as_wide_as_programs_need(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nine of a class make a factor, five none; one that the host bounds says nothing."""

    def one(name: str, error: float, part: float = 1.0) -> tuple[Outcome, str]:
        return Outcome(name, "", 1.0, 1.0 + error, 0.1, parts=(("matmul", part),)), "H100"

    wide = [one(f"p{at}", at / 100) for at in range(1, 10)]
    rows = scales.needed([*wide, one("of the host", 5.0, 0.3)])
    assert [row.program for row in rows] == [f"p{at}" for at in range(1, 10)]
    assert scales.factors(rows) == {("H100-SXM5-80GB", "matmul"): 0.8}
    assert scales.factors(rows[:5]) == {}
    written = []
    monkeypatch.setattr(scales, "write", lambda *file: written.append(file))
    scales.calibrate(rows)
    row = {"gpu": "H100-SXM5-80GB", "class": "matmul", "factor": 0.8}
    assert written == [("scales", scales.HEAD, [("scale", row)])]
    assert "H100-SXM5-80GB" in capsys.readouterr().out


def test_a_factor_widens_the_band_of_its_class_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def widths() -> list[float]:
        cost = CostModel(gpus.find("H100-NVL"), (12, 8))
        shape = ((512, 512), (512, 512), (512, 512))
        product = Signature("aten::mm", shape, ("bfloat16",) * 3, inputs=2)
        return [cost.kernel(product).band, cost.kernel(product._replace(name="aten::add")).band]

    rows: list[dict[str, str | float]] = []
    monkeypatch.setattr(known_scales, "read", lambda name: {"scale": rows} if name == "scales" else files.read(name))
    known_scales.scale.cache_clear()
    before = widths()
    rows.append({"gpu": "H100-NVL-94GB", "class": "matmul", "factor": 2.0})
    known_scales.scale.cache_clear()
    try:
        assert widths() == [pytest.approx(2.0 * before[0], abs=0.002), before[1]]
    finally:
        known_scales.scale.cache_clear()


def test_programs_that_met_the_power_limit_tell_of_its_band(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"gpu": "A100-SXM4-80GB", "class": known_scales.POWER_LIMIT, "factor": 1.5}]
    monkeypatch.setattr(known_scales, "read", lambda name: {"scale": rows})
    known_scales.scale.cache_clear()
    try:
        met = []
        for key in ("A100-SXM4-80GB", "A100-SXM4-40GB"):
            load = Sustained(gpus.find(key))
            for number in range(40):
                load.slowdown(9e6, number * 10_000_000)
            met.append(load.met)
    finally:
        known_scales.scale.cache_clear()
    wide, plain = (limit and limit.band for limit in met)
    assert wide == pytest.approx(1.5 * plain)


def test_a_product_under_the_power_limit_counts_as_such() -> None:
    cost = CostModel(gpus.find("A100-SXM4-40GB"))
    shape = ((4096, 4096),) * 3
    some = [(Signature("aten::mm", shape, ("bfloat16",) * 3, inputs=2), 60),
            (Signature("aten::add", shape, ("bfloat16",) * 3, inputs=2), 40)]  # fmt: skip
    assert dict(parts_of(cost, some, 100, limited=True))[known_scales.POWER_LIMIT] == 0.6
    assert known_scales.POWER_LIMIT not in dict(parts_of(cost, some, 100))
