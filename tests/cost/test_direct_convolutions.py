"""Depthwise and thin grouped convolutions are direct kernels, bound by their bytes; the others are not theirs."""

from __future__ import annotations

import pytest

from windtunnel import gpus
from windtunnel.cost import CostModel
from windtunnel.cost.families import direct_convolutions
from windtunnel.trace.operation import Signature

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
    assert 3.5 * forward < A100.kernel(backward).duration_ns < 10 * forward  # timm's training of depthwise models


def test_an_ordinary_convolution_is_no_direct_one():
    whole = convolution(128, 192, 56, 3, 1)
    assert A100.kernel(whole).duration_ns > 3 * A100.kernel(convolution(128, 192, 56, 3, 192)).duration_ns


def test_the_memory_roofline_does_not_know_of_layouts():
    """A 1x1 convolution of few channels is bound by its bytes, wherever its channels lie."""
    plain = convolution(256, 24, 112, 1, 1, "float32")
    assert A100.kernel(plain) == A100.kernel(plain._replace(detail=(("channels_last", 1),)))


RTX4090 = CostModel(gpus.find("RTX4090"), (12, 8))


def depthwise(channels, size, kernel, stride=1, dilation=1, dtype="float16", last=False, bias=False):
    x, weight, out = (256, channels, size, size), (channels, 1, kernel, kernel), (256, channels, size, size)
    given = (x, weight, (channels,)) if bias else (x, weight)
    detail = (("channels_last", 1),) * last + (
        ("stride", f"[{stride}, {stride}]"),
        ("dilation", f"[{dilation}, {dilation}]"),
    )
    return Signature("aten::convolution", (*given, out), (dtype,) * (len(given) + 1), len(given), detail=detail)


@pytest.mark.parametrize(
    ("library", "signature"),
    [
        ("cudnn", depthwise(32, 7, 3)),
        ("cudnn", depthwise(64, 56, 5)),
        ("cudnn", depthwise(64, 56, 7, last=True)),
        ("cudnn", depthwise(64, 56, 3, dtype="float32", last=True)),
        ("cudnn", depthwise(512, 14, 3, stride=2)),
        ("cudnn", depthwise(256, 28, 5, stride=2)),
        ("pytorch", depthwise(256, 14, 5, stride=2)),
        ("pytorch", depthwise(64, 56, 7)),
        ("pytorch", depthwise(16, 56, 3)),
        ("pytorch", depthwise(64, 6, 3)),
        ("pytorch", depthwise(64, 56, 3, dilation=2)),
        ("pytorch", depthwise(64, 56, 3, dtype="float32")),
        ("pytorch", depthwise(64, 56, 3, dtype="bfloat16")),
    ],
)
def test_who_runs_a_depthwise_convolution(library, signature):
    """`use_cudnn_depthwise` of aten/src/ATen/native/Convolution.cpp."""
    assert direct_convolutions.is_pytorchs(RTX4090.problem(signature, "convolution", "fp16", 1.0)) == (
        library == "pytorch"
    )


def test_a_large_kernel_is_bound_by_its_arithmetic():
    small, large = (RTX4090.kernel(depthwise(64, 56, kernel)).duration_ns for kernel in (3, 11))
    assert large > 2 * small


def test_cudnns_result_gets_its_bias_from_a_kernel_of_its_own_and_pytorchs_does_not():
    def added(kernel):
        bare, biased = (RTX4090.kernel(depthwise(64, 56, kernel, bias=bias)).duration_ns for bias in (False, True))
        return biased - bare

    tensor = 2 * 256 * 64 * 56 * 56
    assert added(3) == pytest.approx(2e9 * tensor / 1008e9, rel=0.25)
    assert added(7) < 100


@pytest.mark.parametrize(("kernel", "dtype", "direct"), [(7, "float16", 1), (9, "float16", 0), (9, "float32", 1)])
def test_channels_last_has_depthwise_kernels_up_to_seven(kernel, dtype, direct):
    """Those that profiles show by name; larger ones are grouped products, which published runs are slow with."""
    known = RTX4090.problem(signature := depthwise(768, 24, kernel, dtype=dtype, last=True), "convolution", "fp16", 1.0)
    known = known._replace(precision="fp16" if dtype == "float16" else "fp32")
    assert direct_convolutions.is_direct(known) == bool(direct)
    first = RTX4090.kernel(depthwise(768, 24, kernel, dtype=dtype)).duration_ns
    assert (RTX4090.kernel(signature).duration_ns > 3 * first) == (not direct)


def test_a_compiled_focalnet_takes_what_was_published():
    """Its 24 depthwise 9x9 convolutions are half of its step: 1253 ms where direct ones would make 680."""
    ms = sum(
        times * RTX4090.kernel(depthwise(channels, size, 9, last=True)).duration_ns / 1e6
        for channels, size, times in ((192, 96, 2), (384, 48, 2), (768, 24, 18), (1536, 12, 2))
    )
    assert ms == pytest.approx(1253 - 660, rel=0.1)


@pytest.mark.parametrize(
    ("channels", "size", "kernel", "us"), [(192, 56, 3, 368.4), (192, 28, 7, 328.9), (96, 56, 7, 631.4)]
)
def test_pytorchs_own_kernel_is_bound_by_its_instructions(channels, size, kernel, us):
    """Measured on an H100 (`make hardware`); in 16 bits it takes as long."""
    cost = CostModel(gpus.find("H100-SXM5-80GB"))
    for dtype, precision in (("float32", "fp32"), ("bfloat16", "bf16")):
        row = convolution(64, channels, size, kernel, channels, dtype)
        problem = cost.problem(row, "convolution", precision, 1.0)
        assert direct_convolutions.threads_ns(problem) / 1000.0 == pytest.approx(us, rel=0.07)
