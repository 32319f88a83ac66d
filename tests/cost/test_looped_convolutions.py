"""3-d convolutions in 16 bits that PyTorch does not leave to the cuDNN of its wheels for CUDA 12.8."""

from __future__ import annotations

import pytest

from windtunnel import gpus
from windtunnel.cost import CostModel
from windtunnel.cost.families import looped_convolutions
from windtunnel.trace.operation import Signature

WHEELS = CostModel(gpus.find("RTX4090"), (12, 8))


def convolution(batch=64, channels=1, kernel=(9, 9, 1), dtype="float16", bias=False, last=False, groups=1, deep=16):
    x, weight, out = (batch, channels, 16, 16, 64), (deep, channels // groups, *kernel), (batch, deep, 16, 16, 64)
    given = (x, weight, (deep,)) if bias else (x, weight)
    detail = (("channels_last", 1),) * last + (("groups", str(groups)),)
    return Signature("aten::convolution", (*given, out), (dtype,) * (len(given) + 1), len(given), detail=detail)


def is_looped(cuda=(12, 8), **how):
    signature = convolution(**how)
    precision = "fp32" if how.get("dtype") == "float32" else "fp16"
    problem = CostModel(gpus.find("RTX4090"), cuda).problem(signature, "convolution", precision, 1.0)
    return looped_convolutions.is_looped(problem)


def test_which_convolutions_are_looped():
    """`ConvParams::use_cudnn` of PyTorch 2.9: cuDNN 9.8 to 9.14, 16 bits, three dimensions, channels first."""
    assert is_looped()
    assert is_looped(dtype="bfloat16")
    assert not is_looped(cuda=(12, 4))
    assert not is_looped(cuda=(13, 0))
    assert not is_looped(dtype="float32")
    assert not is_looped(kernel=(1, 1, 1))
    assert not is_looped(channels=16, last=True)
    assert not is_looped(channels=16, groups=16)
    older = convolution()._replace(detail=(("cudnn", 1),))  # of a PyTorch before 2.9
    assert not looped_convolutions.is_looped(WHEELS.problem(older, "convolution", "fp16", 1.0))


def test_the_loop_goes_over_images_and_groups():
    one, two = (WHEELS.kernel(convolution(batch=batch, bias=True)).duration_ns for batch in (64, 128))
    assert two == pytest.approx(2 * one, rel=1e-6)
    apart = WHEELS.kernel(convolution(channels=32, groups=2)).duration_ns
    assert apart > 1.2 * WHEELS.kernel(convolution(channels=16)).duration_ns


def test_a_bias_is_a_copy_for_each_channel_of_each_image():
    """timm's eager lambda_resnet26t takes 477 ms, of which 49,152 copies are 170; compiled it takes 200."""
    bare, biased = (WHEELS.kernel(convolution(batch=1024, bias=bias)).duration_ns for bias in (False, True))
    assert (biased - bare) / 1e6 == pytest.approx(1024 * 16 * 3.4 / 1e3, rel=0.2)


def test_the_backward_pass_loops_too():
    x, weight, out = (64, 1, 16, 16, 64), (16, 1, 9, 9, 1), (64, 16, 16, 16, 64)
    shapes, dtypes = (out, x, weight, x, weight, (16,)), ("float16",) * 6
    backward = WHEELS.kernel(Signature("aten::convolution_backward", shapes, dtypes, 3)).duration_ns
    assert 1.5 < backward / WHEELS.kernel(convolution()).duration_ns < 2.5
