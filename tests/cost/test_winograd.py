"""FP32 convolutions of 3 x 3 filters: directly, or by Winograd's transforms within a kernel or between kernels."""

from __future__ import annotations

import numpy as np
import pytest
from test_convolutions import backward, forward, model, ns
from tools.calibration import calibrate_winograd

from windtunnel import gpus
from windtunnel.cost.families import winograd
from windtunnel.cost.families.winograd import Work

V100, P100, RTX3090TI = model("V100-PCIe-32GB"), model("P100-PCIe-16GB"), model("RTX3090Ti")
PLAIN = (("dilation", "[1, 1]"),)


def fp32(*sizes, detail=PLAIN, **options):
    return forward(*sizes, dtype="float32", detail=detail, **options)


def us(way, key, work):
    constants, machine, _ = winograd.constants_for(gpus.find(key))
    return way(work, constants, machine)


@pytest.mark.parametrize("key", calibrate_winograd.read())
def test_half_of_the_published_times_are_within_a_sixth(key):
    timings = calibrate_winograd.read()[key]
    constants, _, near = winograd.constants_for(gpus.find(key))
    errors = np.abs(timings.predicted(constants) / timings.us - 1.0)
    assert near == "own GPU"
    assert np.median(errors) < 1 / 6
    assert np.quantile(errors, 0.9) < 0.55


def test_what_is_priced_is_the_fastest_way():
    work = Work(32, 128, 128, 28, 28)
    fastest = min(us(way, "V100-PCIe-32GB", work) for way in winograd.WAYS)
    assert ns(V100, fp32(32, 128, 128, 28, 3)) == pytest.approx(1000.0 * fastest)


def test_transforms_beat_the_products_that_they_save():
    work = 2 * 64 * 28 * 28 * 256 * 256 * 9
    assert work / ns(V100, fp32(64, 256, 256, 28, 3)) * 1e9 > V100.gpu.peak_flops["fp32"]


def test_dilated_filters_have_no_transforms():
    sizes = (16, 256, 256, 64, 3)
    dilated = ns(V100, fp32(*sizes, detail=(("dilation", "[2, 2]"),)))
    assert dilated == pytest.approx(1000.0 * us(winograd.direct_us, "V100-PCIe-32GB", Work(16, 256, 256, 64, 64)))
    assert dilated > 1.4 * ns(V100, fp32(*sizes))


def test_transforms_of_their_own_write_no_more_than_what_was_seen():
    few, many = Work(1, 256, 512, 64, 64), Work(1, 2048, 512, 256, 512)
    assert winograd.has_room(few)
    assert winograd.ways_of(few, False) == winograd.WAYS
    assert winograd.ways_of(many, False) == (winograd.direct_us,)
    assert winograd.ways_of(many._replace(made=256), False) == (winograd.direct_us, winograd.fused_us)


def test_the_gradient_of_the_data_is_the_convolution_with_its_channels_exchanged():
    gradient = backward(32, 64, 256, 28, 3, wanted="x", dtype="float32", detail=PLAIN)
    assert ns(V100, gradient) == pytest.approx(ns(V100, fp32(32, 256, 64, 28, 3)), rel=0.01)


def test_a_gradient_of_the_weights_may_be_transformed():
    gradient = backward(64, 256, 256, 28, 3, wanted="w", dtype="float32", detail=PLAIN)
    assert ns(V100, gradient) < 1.6 * ns(V100, fp32(64, 256, 256, 28, 3))


def test_a_generation_without_timings_borrows_them_and_says_so():
    sizes = (32, 128, 128, 28, 3)
    assert winograd.constants_for(RTX3090TI.gpu)[2] == "borrowed"
    assert RTX3090TI.kernel(fp32(*sizes)).band > V100.kernel(fp32(*sizes)).band
    assert ns(RTX3090TI, fp32(*sizes)) < ns(V100, fp32(*sizes)) < ns(P100, fp32(*sizes))
