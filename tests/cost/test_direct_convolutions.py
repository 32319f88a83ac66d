"""Depthwise and thin grouped convolutions are direct kernels, bound by their bytes; the others are not theirs."""

from __future__ import annotations

import pytest

from understudy import gpus
from understudy.cost import CostModel
from understudy.trace.operation import Signature

A100 = CostModel(gpus.find("A100-SXM4-80GB"))


def convolution(batch, channels, size, kernel, groups, dtype="float16"):
    x, weight = (batch, channels, size, size), (channels, channels // groups, kernel, kernel)
    return Signature("aten::convolution", (x, weight, x), (dtype,) * 3, 2)


def bytes_ns(signature):
    return 1e9 * 2 * 2 * 128 * 192 * 56 * 56 / A100.gpu.memory_bandwidth_bytes_per_s


def test_a_depthwise_convolution_takes_the_time_of_its_bytes():
    cost = A100.kernel(depthwise := convolution(128, 192, 56, 3, 192))
    assert cost.bound == "memory"
    assert 1.0 < cost.duration_ns / bytes_ns(depthwise) < 2.0


@pytest.mark.parametrize("channels", [191, 192])
def test_it_needs_no_aligned_channels_and_no_layout(channels):
    plain = convolution(128, channels, 56, 3, channels)
    last = plain._replace(detail=(("channels_last", 1),))
    assert A100.kernel(plain) == A100.kernel(last)
    assert A100.kernel(plain).duration_ns < 1.01 * A100.kernel(convolution(128, 192, 56, 3, 192)).duration_ns


def test_its_backward_pass_too():
    x, weight = (128, 192, 56, 56), (192, 1, 3, 3)
    backward = Signature("aten::convolution_backward", (x, x, weight, x, weight), ("float16",) * 5, 3)
    forward = A100.kernel(convolution(128, 192, 56, 3, 192)).duration_ns
    assert 4 * forward < A100.kernel(backward).duration_ns < 10 * forward  # timm's training of depthwise models


def test_an_ordinary_convolution_is_no_direct_one():
    whole = convolution(128, 192, 56, 3, 1)
    assert A100.kernel(whole).duration_ns > 3 * A100.kernel(convolution(128, 192, 56, 3, 192)).duration_ns


def test_the_memory_roofline_does_not_know_of_layouts():
    """A 1x1 convolution of few channels is bound by its bytes, wherever its channels lie."""
    plain = convolution(256, 24, 112, 1, 1, "float32")
    assert A100.kernel(plain) == A100.kernel(plain._replace(detail=(("channels_last", 1),)))
