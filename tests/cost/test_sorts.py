"""Sorts, `topk`, interpolations: measured times, and what is lent to GPUs without kernels of their own."""

from __future__ import annotations

import pytest

from windtunnel import gpus
from windtunnel.cost import CostModel
from windtunnel.trace.operation import Signature

H100, H200, A100, RTX3090, T4, B200, L20 = (
    CostModel(gpus.find(name), (12, 8)) for name in ("H100", "H200", "A100-SXM4-80GB", "RTX3090", "T4", "B200", "L20")
)


def us(cost: CostModel, name: str, *shape: int, dtype: str = "float32") -> float:
    """A sort along the last dimension, or the eight largest elements of it, as the family has it."""
    found = (*shape[:-1], 8) if name == "topk" else shape
    signature = Signature(f"aten::{name}", (shape, found, found), (dtype, dtype, "int64"), 1)
    return cost.priced(signature).duration_ns / 1000


@pytest.mark.parametrize(
    ("cost", "name", "shape", "dtype", "measured"),
    [
        (H100, "sort", (1024, 256), "float32", 34.9),
        (H100, "sort", (2048, 1024), "float32", 80.9),
        (H100, "sort", (16384, 1024), "bfloat16", 371.1),
        (H100, "sort", (16384, 4096), "float32", 2076.1),
        (H200, "sort", (1048576, 16), "float32", 1842.9),
        (H200, "sort", (256, 16384), "float32", 346.0),
        (H200, "sort", (128, 65536), "bfloat16", 452.6),
        (H200, "sort", (8, 262144), "float32", 483.2),
        (H200, "sort", (1, 16777216), "float32", 823.1),
        (H100, "topk", (16384, 1024), "float32", 532.9),
        (H100, "topk", (16384, 4096), "bfloat16", 670.1),
        (H200, "topk", (1048576, 16), "float32", 4374.2),
    ],
)  # fmt: skip
def test_measured_sorts_are_met_within_a_third(
    cost: CostModel, name: str, shape: tuple[int, ...], dtype: str, measured: float
) -> None:
    assert us(cost, name, *shape, dtype=dtype) == pytest.approx(measured, rel=0.34)


@pytest.mark.parametrize("length", [1024, 2048, 4096, 8192, 16384, 32768])
def test_a_sort_takes_most_of_sparsemax_on_an_rtx_3090(length: int) -> None:
    """423, 778, 1,494, 5,360, 10,884 and 22,199 us for all of it (github.com/linkedin/Liger-Kernel)."""
    printed = {1024: 422.9, 2048: 778.2, 4096: 1494.0, 8192: 5359.6, 16384: 10884.0, 32768: 22199.0}[length]
    assert 0.4 * printed < us(RTX3090, "sort", 2048, length) < 0.8 * printed


@pytest.mark.parametrize(("length", "printed"), [(1024, 41.7), (1025, 45.9), (8192, 101.0), (131072, 1128.3)])
def test_the_largest_elements_are_found_as_fast_as_on_an_l20(length: int, printed: float) -> None:
    """Four of each of 256 rows (intel/torch-xpu-ops#3369)."""
    assert us(L20, "topk", 256, length) == pytest.approx(printed, rel=0.3)


def test_rows_that_run_at_once_take_as_long() -> None:
    assert us(H100, "sort", 64, 300) == pytest.approx(us(H100, "sort", 64, 1000), rel=0.01)
    assert us(H100, "sort", 60000, 1000) > 1.9 * us(H100, "sort", 30000, 1000)


@pytest.mark.parametrize("name", ["sort", "topk"])
@pytest.mark.parametrize("length", [16, 100, 1000, 4000, 5000, 100_000, 2_000_000])
def test_a_longer_row_never_takes_less_nor_do_more_bits(name: str, length: int) -> None:
    assert us(A100, name, 256, length) <= 1.01 * us(A100, name, 256, 2 * length)
    assert us(A100, name, 256, length, dtype="bfloat16") <= us(A100, name, 256, length)


def test_nothing_and_one_element_need_no_sort() -> None:
    assert us(A100, "sort", 0, 5) < 12
    assert us(A100, "sort", 1000, 1) < 12


def interpolated(cost: CostModel, name: str, small: int, dtype: str, layout: str, *of: int) -> float:
    images, channels = of
    inputs, outputs = (images, channels, small, small), (images, channels, 2 * small, 2 * small)
    shapes = (outputs, inputs) if name.endswith("backward") else (inputs, outputs)
    detail = (("channels_last", 1),) if layout == "last" else ()
    return cost.priced(Signature(f"aten::{name}", shapes, (dtype, dtype), 1, detail=detail)).duration_ns / 1000


@pytest.mark.parametrize(
    ("name", "dtype", "layout", "few", "many"),
    [
        ("upsample_bilinear2d", "float32", "first", 6374.9, 7000.8),
        ("upsample_bilinear2d", "bfloat16", "last", 1804.6, 7237.3),
        ("upsample_bilinear2d_backward", "bfloat16", "first", 4555.2, 16388.7),
        ("upsample_bicubic2d", "float32", "last", 85507.8, 85815.8),
        ("upsample_bicubic2d_backward", "bfloat16", "first", 396817.7, 484328.4),
    ],
)  # fmt: skip
def test_measured_interpolations_are_met(name: str, dtype: str, layout: str, few: float, many: float) -> None:
    assert interpolated(H200, name, 56, dtype, layout, 64, 256) == pytest.approx(few, rel=0.15)
    assert interpolated(H200, name, 112, dtype, layout, 256, 64) == pytest.approx(many, rel=0.15)


@pytest.mark.parametrize(("side", "printed"), [(28, 33), (38, 48), (56, 81), (74, 121)])
def test_small_bicubic_results_are_spread_over_the_gpu_since_pytorch_2_12(side: int, printed: float) -> None:
    """A B200's, of 1,152 planes of 64 x 64: 1,146 to 1,425 us before (pytorch/pytorch#174578)."""
    shapes = ((1, 1152, 64, 64), (1, 1152, side, side))
    alone = Signature("aten::upsample_bicubic2d", shapes, ("float32",) * 2, 1)
    now, before = (B200.kernel(one).duration_ns / 1000 for one in (alone._replace(detail=(("together", 1),)), alone))
    assert now == pytest.approx(printed, rel=0.5)  # which has a fill and two events beside it
    assert 1000 < 1.6 * before < 1800


@pytest.mark.parametrize(
    ("given", "made", "printed"), [(16, 6, 38), (32, 6, 98), (48, 6, 179), (32, 14, 69), (32, 16, 55), (48, 16, 100)]
)
def test_antialiased_results_take_their_windows(given: int, made: int, printed: float) -> None:
    """An A100's, 768 planes in 16 bits, with a launch of its own (pytorch/pytorch#127082)."""
    shapes = ((1, 768, given, given), (1, 768, made, made))
    signature = Signature("aten::_upsample_bicubic2d_aa", shapes, ("bfloat16",) * 2, 1)
    assert A100.priced(signature).duration_ns / 1000 + 12 == pytest.approx(printed, rel=0.3)


def test_an_interpolation_waits_for_its_planes_whatever_the_gpu() -> None:
    """A thread for each of 12,544 places keeps no GPU busy: clocks tell, not the number of multiprocessors."""
    one, other = (
        interpolated(cost, "upsample_bilinear2d", 56, "float32", "first", 64, 256) for cost in (A100, RTX3090)
    )
    clocks = A100.gpu.cycles_per_us / RTX3090.gpu.cycles_per_us
    assert other / one == pytest.approx(clocks, rel=0.05)


def test_a_logarithm_of_a_sum_is_nine_kernels_that_go_through_memory_six_times() -> None:
    """An H200's: 511 us for 64 rows of 1,048,576 numbers."""
    signature = Signature("aten::logsumexp", ((64, 1 << 20), (64,)), ("float32", "float32"), 1)
    assert H200.priced(signature).duration_ns / 1000 == pytest.approx(510.9, rel=0.25)
    small = Signature("aten::logsumexp", ((64, 64), (64,)), ("float32", "float32"), 1)
    assert A100.priced(small).duration_ns > 9000


def test_what_multiprocessors_bound_on_one_gpu_they_bound_on_others() -> None:
    """A reflection takes nine times as long as its bytes on an H100 (16 bits), and so on a T4, whose band says that
    nobody timed it there."""
    pad = Signature("aten::reflection_pad2d", ((16, 64, 512, 512), (16, 64, 514, 514)), ("bfloat16",) * 2, 1)
    for cost in (A100, T4):
        alone, lent = cost.priced(pad), cost.kernel(pad)
        assert lent.duration_ns > 3 * alone.duration_ns
        assert lent.band >= 0.4
        cycles = lent.duration_ns / cost.gpu.spread_ns(1.0)
        assert cycles == pytest.approx(H100.kernel(pad).duration_ns / H100.gpu.spread_ns(1.0), rel=0.05)


def test_nothing_is_lent_where_memory_bounds_or_no_kernel_is_near() -> None:
    add = Signature("aten::add", ((1 << 24,), (1 << 24,), (1 << 24,)), ("float32",) * 3, 2)
    tiny = Signature("aten::reflection_pad2d", ((2, 4, 4), (2, 6, 6)), ("bfloat16",) * 2, 1)
    for signature in (add, tiny):
        assert A100.kernel(signature).duration_ns == round(A100.priced(signature).duration_ns)
