"""Measuring curves: on an emulated GPU the measurement must give back the model that it ran on."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from windtunnel import emulate, gpus
from windtunnel.cli import calibrate, group
from windtunnel.cost import CostModel, measured
from windtunnel.errors import FileFormatError, UsageError
from windtunnel.measure import curves
from windtunnel.trace.operation import Signature

pytestmark = pytest.mark.long
"""Each starts programs of its own."""

V100 = gpus.find("V100")
CURVES = ("elementwise", "softmax", "matmul", "convolution")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that a measurement on an emulated V100 and the reference host gives, at two sizes."""
    with pytest.MonkeyPatch.context() as patch, emulate("V100", no_data=True, assume=1.0, host="reference"):
        patch.setattr(curves, "ROOFLINE_US", (30.0, 1000.0))
        stock = curves.plans
        patch.setattr(curves, "plans", lambda gpu: {k: plan for k, plan in stock(gpu).items() if k[0] in CURVES})
        found = curves.measure(curves.this_gpu(), how="EMULATED")
    file = tmp_path_factory.mktemp("measured") / "v100.toml"
    file.write_text(calibrate.text(found))
    return file


def square(n: int, dtype: str) -> Signature:
    size = 4 if dtype == "float32" else 2
    return Signature("aten::mm", ((n, n),) * 3, (dtype,) * 3, 2, 2 * n**3, 2 * size * n * n, size * n * n)


def rows(name: str, n: int, dtype: str = "float32") -> Signature:
    reads = 2 if name == "aten::add" else 1
    return Signature(name, ((n, 1024),) * (reads + 1), (dtype,) * (reads + 1), reads, 0, 4096 * reads * n, 4096 * n)


def test_measured_kernels_are_the_modelled_ones(path: Path) -> None:
    """Within rounding of the file's digits, at the sizes that were measured."""
    own = CostModel(V100, (11, 2), measured.load(str(path)))
    stock = CostModel(V100, (11, 2))
    sides = {"float32": (640, 1984), "float16": (1216, 3968)}
    work = [square(n, dtype) for dtype, both in sides.items() for n in both]
    work += [rows("aten::add", round(us * 900e3 / 12288)) for us in (30.0, 1000.0)]
    work += [rows("aten::_softmax", round(us * 900e3 / 8192)) for us in (30.0, 1000.0)]
    for signature in work:
        assert own.kernel(signature).duration_ns == pytest.approx(stock.kernel(signature).duration_ns, rel=0.02)
        assert own.kernel(signature).band == 0.05


def test_a_convolution_takes_as_long_as_its_measured_curve_says(tmp_path: Path) -> None:
    file = tmp_path / "v100.toml"
    file.write_text(
        'gpu = "V100-SXM2-16GB"\ngeneration = "volta"\n[[curve]]\nclass = "convolution"\nprecision = "fp32"\n'
        'roofline_us = [100.0, 10000.0]\nefficiency = [0.5, 0.5]\nband = [0.05, 0.05]\nsource = "a test"\n'
    )
    images, weight = (16, 256, 56, 56), (256, 256, 3, 3)
    signature = Signature("aten::convolution", (images, weight, images), ("float32",) * 3, 2)
    roofline_ns = 1e9 * 2 * 16 * 56 * 56 * 256 * 256 * 9 / V100.peak_flops["fp32"]
    kernel = CostModel(V100, (11, 2), measured.load(str(file))).kernel(signature)
    assert kernel.duration_ns == pytest.approx(roofline_ns / 0.5, rel=0.02)


def test_measured_host_times_and_copies_are_the_modelled_ones(path: Path) -> None:
    own = CostModel(V100, (11, 2), measured.load(str(path)))
    stock = CostModel(V100, (11, 2))
    for name in ("aten::add", "aten::exp", "aten::mm", "aten::sum", "aten::convolution"):
        assert own.dispatch_ns(name) == pytest.approx(stock.dispatch_ns(name), rel=0.01)
    assert own.synchronize_ns == pytest.approx(stock.synchronize_ns, rel=0.01)
    assert own.malloc_ns(1 << 30) == pytest.approx(stock.malloc_ns(1 << 30), rel=0.05)
    for pinned in (True, False):
        copies = (model.copy_ns(1 << 26, -1, 0, pinned) for model in (own, stock))
        assert next(copies) == pytest.approx(next(copies), rel=0.01)


def test_another_generation_keeps_its_own_curves(path: Path) -> None:
    a100 = gpus.find("A100")
    own, stock = CostModel(a100, (11, 2), measured.load(str(path))), CostModel(a100, (11, 2))
    assert own.kernel(square(4096, "float32")) == stock.kernel(square(4096, "float32"))


def test_an_emulation_takes_its_times_from_the_file(path: Path) -> None:
    text = path.read_text().replace("matmul = 9.0", "matmul = 90.0")
    slow = path.with_name("slow.toml")
    slow.write_text(text)
    with emulate("V100", no_data=True, curves=str(slow)) as session:
        assert session.machine.devices[0].cost.dispatch_ns("aten::mm") == 90_000


def test_without_a_gpu_it_says_so_in_a_sentence(tmp_path: Path) -> None:
    run = CliRunner().invoke(group, ["calibrate", "-o", str(tmp_path / "x.toml")], standalone_mode=False)
    assert isinstance(run.exception, UsageError)
    assert "there is no GPU here to measure" in str(run.exception)
    assert not (tmp_path / "x.toml").exists()


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("a = 1")
    with pytest.raises(FileFormatError, match="no file of measured curves"):
        measured.load(str(other))
