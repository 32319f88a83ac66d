"""What tensor cores keep of their speed under load (`cost/sustained.py`), and the trainings that it is fitted on."""

from __future__ import annotations

from statistics import median

import pytest
from tools.calibration import calibrate_bands, calibrate_sustained
from tools.corpus import language_models, recordings

from windtunnel import gpus
from windtunnel.cost import CostModel
from windtunnel.cost.sustained import WINDOW_NS, Sustained, limit_of
from windtunnel.trace.operation import Signature

MS = 1_000_000


def product(dtype: str) -> Signature:
    return Signature("aten::mm", ((4096, 4096),) * 3, (dtype,) * 3, 2, 2 * 4096**3, 1 << 26, 1 << 25)


def slowdowns(rate: float, count: int, gpu: str = "H100") -> list[float]:
    """Of kernels of a millisecond that reach a share of the peak."""
    load = Sustained(gpus.find(gpu))
    return [load.slowdown(rate * MS, at * MS) for at in range(count)]


def test_a_load_near_the_peak_slows_down_and_a_short_one_does_not() -> None:
    limit = limit_of("hopper")
    assert limit is not None
    found = slowdowns(0.8, 1000)
    assert found[:30] == [1.0] * 30
    assert found == sorted(found)
    assert found[-1] == pytest.approx(1.0 / limit.share)


def test_a_load_far_from_the_peak_keeps_its_speed() -> None:
    assert set(slowdowns(0.25, 2000)) == {1.0}


def test_a_card_with_more_watts_for_its_peak_meets_its_limit_later() -> None:
    """Products of 10,240 rows reach 0.95 of an H20's peak (github.com/zzc0721/torch-performance-test-data#77)."""
    assert set(slowdowns(0.95, 1000, "H20")) == {1.0}
    assert slowdowns(0.3, 2000, "H100-PCIe")[-1] > 1.2 > slowdowns(0.3, 2000)[-1]


def test_between_both_a_part_is_lost() -> None:
    assert 1.0 < slowdowns(0.35, 2000)[-1] < slowdowns(0.45, 2000)[-1]


def test_a_gpu_that_rests_recovers() -> None:
    load = Sustained(gpus.find("H100"))
    for at in range(1000):
        load.slowdown(0.8 * MS, at * MS)
    assert load.met is not None
    assert load.slowdown(0.8 * MS, round(1000 * MS + 3 * WINDOW_NS)) == 1.0


def test_one_kernel_longer_than_the_window_is_a_load() -> None:
    assert slowdowns(500.0, 1)[0] > 1.15


def test_constants_that_were_fitted_on_trainings_hold_the_loss_already() -> None:
    assert set(slowdowns(0.9, 1000, "RTX3090")) == {1.0}
    assert Sustained(gpus.find("V100")).met is None


@pytest.mark.parametrize(("dtype", "counts"), [("bfloat16", True), ("float16", True), ("float32", False)])
def test_products_count_by_their_time_at_the_peak(dtype: str, counts: bool) -> None:
    gpu = gpus.find("H100")
    found = CostModel(gpu, (12, 4)).kernel(product(dtype))
    expected = 1e9 * 2 * 4096**3 / gpu.peak_flops["bf16"] if counts else 0.0
    assert found.peak_ns == pytest.approx(expected)
    assert found.peak_ns < found.duration_ns


def test_convolutions_count_like_products() -> None:
    """They are priced up to what a large product reaches in a short run (huggingface/diffusion-fast's SDXL)."""
    shapes = ((16, 320, 64, 64), (320, 320, 3, 3), (16, 320, 64, 64))
    gpu = gpus.find("A100-80GB")
    found = CostModel(gpu, (12, 4)).kernel(Signature("aten::convolution", shapes, ("float16",) * 3, 2))
    assert found.peak_ns == pytest.approx(1e9 * 2 * 16 * 320 * 320 * 9 * 64 * 64 / gpu.peak_flops["fp16"])


def test_the_trainings_are_met_by_the_programs_attention_and_better_by_that_of_the_runs() -> None:
    """The medians that the fit prints: 20 and 28 % before there was a limit."""
    slower = calibrate_sustained.attention()
    some = recordings.read(recordings.LANGUAGES)
    assert len(some) == len(language_models.rows()) == 83
    for card, least in (("A100-SXM4-40GB", 0.08), ("H100-SXM5-80GB", 0.14)):
        mine = [one for one in some if one.gpu == card]
        of_pytorch = [one.predicted_ns() / 1e6 / one.ms for one in mine]
        as_published = [one.predicted_ns(slower) / 1e6 / one.ms for one in mine]
        assert median(abs(ratio - 1.0) for ratio in of_pytorch) < least
        assert median(abs(ratio - 1.0) for ratio in as_published) < 0.05
        limit = limit_of(gpus.find(card).generation)
        inside = [
            abs(1.0 / ratio - 1.0) <= calibrate_bands.band_of(one, limit)
            for one, ratio in zip(mine, of_pytorch, strict=True)
        ]
        assert 0.7 < sum(inside) / len(inside) < 0.92


def test_the_limit_is_what_the_fit_gives() -> None:
    some = calibrate_sustained.steps()
    shares, _ = calibrate_sustained.fit(some, some.ms > 0)
    found = {name: limit_of(name) for name in ("ampere", "hopper", "blackwell")}
    expected = [*shares.values(), calibrate_sustained.mean_of(shares)]
    assert [limit and limit.share for limit in found.values()] == pytest.approx(expected, abs=1e-4)


@pytest.mark.long
def test_a_training_takes_what_its_recording_says() -> None:
    (row,) = [one for one in language_models.rows() if one.model == "MPT-125m" and one.length == 2048]
    (recorded,) = [
        one for one in recordings.read(recordings.LANGUAGES) if (one.model, one.group) == (row.model, row.group)
    ]
    assert language_models.run(row).ms == pytest.approx(recorded.predicted_ns() / 1e6, rel=0.02)
