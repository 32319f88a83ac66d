"""Fourier transforms: passes over the data, latency of short ones, lengths with large primes."""

from __future__ import annotations

import math

import pytest

from windtunnel import gpus
from windtunnel.cost import CostModel
from windtunnel.trace.operation import Signature

RTX3080, V100 = (CostModel(gpus.find(name), (12, 8)) for name in ("RTX3080", "V100-SXM2-16GB"))


def us(cost_model, shape, dim="[1]", normalization="0", dtype="complex64"):
    detail = (("dim", dim), ("normalization", normalization))
    signature = Signature("aten::_fft_c2c", (shape, shape), (dtype,) * 2, 1, detail=detail)
    return cost_model.kernel(signature).duration_ns / 1000


@pytest.mark.parametrize(
    ("length", "batch", "published"),
    [(1024, 1, 3.379), (16384, 256, 130.0), (65536, 16, 54.0), (1048576, 4, 223.0), (4194304, 16, 3728.0)],
)
def test_published_transforms_are_met(length, batch, published):
    """cuFFT on an RTX 3080 (tools/corpus/fft_published.csv)."""
    assert us(RTX3080, (batch, length)) == pytest.approx(published, rel=0.3)


def test_a_long_transform_passes_twice_over_the_data():
    one, two = us(V100, (4096, 4096)), us(V100, (64, 4096 * 64))
    assert two == pytest.approx(2 * one, rel=0.1)


def test_each_dimension_takes_passes_of_its_own():
    both, rows = us(V100, (4096, 4096), "[0, 1]"), us(V100, (4096, 4096))
    assert both == pytest.approx(2 * rows, rel=0.05)


def test_scaling_an_inverse_transform_is_another_pass():
    assert us(V100, (4096, 4096), normalization="2") == pytest.approx(2 * us(V100, (4096, 4096)), rel=0.1)


def test_a_prime_length_costs_several_transforms():
    assert us(V100, (4096, 4099)) > 4 * us(V100, (4096, 4096))


def test_time_grows_with_the_length():
    times = [us(V100, (64, 1 << power)) for power in range(1, 23)]
    assert times == sorted(times)


def test_what_only_moves_data_keeps_its_curve():
    shift = Signature("aten::fft_fftshift", ((64, 64),) * 2, ("complex64",) * 2, 1)
    assert V100.kernel(shift).duration_ns > 0


def test_a_transform_of_nothing_takes_its_floor():
    assert math.isfinite(us(V100, (0, 16)))
