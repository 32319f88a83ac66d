"""Corrections of kernels that lie near measured ones (`cost/neighbours.py`), and those that an H100 gave."""

from __future__ import annotations

from math import exp, log, log2

import pytest

from windtunnel import gpus
from windtunnel.cost import CostModel, neighbours
from windtunnel.cost.bands import band
from windtunnel.operators.classes import bare, classify
from windtunnel.trace.operation import Signature

H100, GH200, A100 = (CostModel(gpus.find(name), (13, 0)) for name in ("H100", "GH200-96GB", "A100"))


def of(name: str, *shapes: tuple[int, ...], dtype: str = "bfloat16", inputs: int = 0, **detail: object) -> Signature:
    """A signature whose last shape is the result's, of one type."""
    inputs = inputs or len(shapes) - 1
    return Signature(name, shapes, (dtype,) * len(shapes), inputs, detail=tuple(detail.items()))  # type: ignore[arg-type]


def place(signature: Signature, cost: CostModel = H100) -> neighbours.Place:
    problem = cost.problem(signature, bare(signature.name), *cost.precision(signature))
    found = neighbours.place(problem, classify(signature.name).name)
    assert found is not None
    return found


def test_a_size_between_two_measured_ones_gets_something_between() -> None:
    near = (neighbours.Kernel((10.0,), log(2.0)), neighbours.Kernel((14.0,), log(0.5)))
    at = [exp(neighbours.correction((size,), near)) for size in (10.0, 12.0, 14.0, 30.0)]
    assert at[0] == pytest.approx(2.0, rel=0.01)
    assert at[1] == pytest.approx(1.0)
    assert at[2] == pytest.approx(0.5, rel=0.01)
    assert at[3] == pytest.approx(0.748, rel=0.01)  # far from both, the nearer one has the larger part


@pytest.mark.parametrize(
    ("signature", "kind"),
    [
        (of("aten::add", (64, 64), (64, 64), (64, 64)), "elementwise plain 16"),
        (of("aten::mul", (64, 64), (64,), (64, 64)), "elementwise iterated 16"),
        (of("aten::clone", (64, 64), (64, 64), strided=1), "elementwise iterated 16"),
        (of("aten::clone", (64, 64), (64, 64), scattered=8192), "elementwise scattered 16"),
        (of("aten::cat", (64, 64), (64, 64), (64, 128)), "copy iterated 16"),
        (of("aten::replication_pad2d", (8, 64, 64), (8, 66, 66)), "reflection_pad2d 16"),
        (of("aten::sum", (8, 64, 64), (8,)), "reduction sum rows 16"),
        (of("aten::sum", (64, 32), (32,)), "reduction sum columns 16"),
        (of("aten::amax", (64, 32), ()), "reduction extreme all 16"),
        (of("aten::mm", (64, 64), (64, 50257), (64, 50257)), "matmul aligned to 2"),
        (of("aten::addmm", (64,), (64, 64), (64, 63), (64, 63), transposed_b=1), "matmul transposed aligned to 2"),
        (of("aten::native_layer_norm", (64, 96), (96,), (96,), (64, 96)), "native_layer_norm 16"),
        (of("aten::cudnn_batch_norm", (8, 4, 7, 7), (4,), (8, 4, 7, 7), channels_last=1),
         "native_batch_norm channels last 16"),
        (of("aten::convolution", (8, 3, 32, 32), (64, 3, 7, 7), (8, 64, 16, 16)), "convolution few channels 16"),
        (of("aten::convolution", (8, 64, 32, 32), (64, 1, 7, 7), (8, 64, 32, 32), channels_last=1),
         "convolution depthwise 16 channels last"),
        (of("aten::_scaled_dot_product_cudnn_attention", *[(2, 4, 128, 64)] * 4, inputs=3, is_causal=1),
         "_scaled_dot_product_cudnn_attention causal 16"),
    ],
)  # fmt: skip
def test_kernels_are_of_the_kind_that_decides_what_runs(signature: Signature, kind: str) -> None:
    assert place(signature).kind == kind


@pytest.mark.parametrize("sides", [(64, 64, 64), (63, 64, 64)])
def test_aligned_products_and_those_in_32_bits_keep_the_familys_time(sides: tuple[int, int, int]) -> None:
    m, n, k = sides
    for dtype in ("bfloat16", "float32"):
        signature = of("aten::mm", (m, k), (k, n), (m, n), dtype=dtype)
        assert H100.kernel(signature).duration_ns == round(H100.priced(signature).duration_ns)


def test_ordinary_convolutions_whose_algorithms_were_tried_keep_the_familys_time() -> None:
    """The measured ones were chosen by heuristics; depthwise ones have one kernel."""
    plain, tried = {"channels_last": 1}, {"channels_last": 1, "benchmark": 1}
    for channels, differ in ((64, True), (1, False)):
        shapes = (8, 64, 32, 32), (64, channels, 3, 3), (8, 64, 32, 32)
        times = [H100.kernel(of("aten::convolution", *shapes, **detail)).duration_ns for detail in (plain, tried)]
        assert (times[0] != times[1]) is differ


def test_transposed_convolutions_keep_the_familys_time() -> None:
    signature = of("aten::convolution", (8, 64, 16, 16), (64, 32, 2, 2), (8, 32, 32, 32), transposed=1)
    assert H100.kernel(signature).duration_ns == round(H100.priced(signature).duration_ns)


def test_a_convolution_lies_by_its_positions_channels_filter_and_stride() -> None:
    found = place(of("aten::convolution", (64, 256, 28, 28), (512, 256, 1, 1), (64, 512, 14, 14)))
    assert found.sizes == pytest.approx((log2(64 * 14 * 14), 8, 9, 0, 2))


@pytest.mark.parametrize(
    ("signature", "us"),
    [
        (of("aten::native_layer_norm", (50432, 768), (768,), (768,), (50432, 768)), 105.4),
        (of("aten::mm", (8192, 768), (768, 50257), (8192, 50257)), 4935.0),
        (of("aten::clone", (4096, 16384), (4096, 16384), scattered=2 << 26), 512.8),
        (of("aten::_scaled_dot_product_cudnn_attention", *[(8, 16, 1024, 128)] * 4, inputs=3, is_causal=0), 114.1),
    ],
)
def test_measured_kernels_come_back(signature: Signature, us: float) -> None:
    """Within 20 %: kernels of other sizes and other operators of a kind have a part in each other's correction."""
    assert H100.kernel(signature).duration_ns / 1000.0 == pytest.approx(us, rel=0.2)


def test_other_gpus_of_the_generation_are_corrected_with_a_wider_band_and_others_not() -> None:
    signature = of("aten::native_layer_norm", (50432, 768), (768,), (768,), (50432, 768))
    costs = (H100, GH200, A100)
    factors = [cost.kernel(signature).duration_ns / cost.priced(signature).duration_ns for cost in costs]
    assert factors[0] == pytest.approx(factors[1], rel=0.01)
    assert 0.85 < factors[0] < 0.97
    assert factors[2] == pytest.approx(1.0, abs=1e-4)
    widths = [cost.kernel(signature).band for cost in (H100, GH200)]
    assert widths == [pytest.approx(band("neighbours norm", name), abs=0.001) for name in ("own GPU", "own generation")]


def test_plain_kernels_have_bands_of_their_own_but_no_corrections() -> None:
    """Large ones are known best: their bandwidth was fitted on them."""
    large, small = (of("aten::add", *[(rows, 8192)] * 3, dtype="float32") for rows in (65536, 16))
    found = [cost.kernel(one) for one in (large, small) for cost in (H100, GH200)]
    assert [one.duration_ns for one in found[::2]] == [round(H100.priced(one).duration_ns) for one in (large, small)]
    assert found[0].band < found[1].band < found[3].band
    assert found[0].band < 0.1 < found[2].band


def test_every_kind_names_sizes_of_one_length() -> None:
    known = neighbours.measured("hopper")
    assert known is not None
    assert known.gpus == {"H100-SXM5-80GB", "H200-SXM-141GB"}
    assert all(len({len(one.sizes) for one in kernels}) == 1 for kernels in known.kinds.values())
    assert sum(map(len, known.kinds.values())) > 1000
