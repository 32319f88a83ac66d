"""Kernels that Inductor generates, and the convolutions with channels last beside them."""

from __future__ import annotations

import pytest

from windtunnel import gpus
from windtunnel.cost import CostModel
from windtunnel.cost.families import generated, streams
from windtunnel.trace.operation import Signature

GB = 10**9


def kernel(name: str, read: int, written: int, **detail: str | int) -> Signature:
    return Signature(name, (), (), 0, 0, read, written, tuple(detail.items()))


def milliseconds(key: str, signature: Signature) -> float:
    return CostModel(gpus.find(key), (12, 8)).kernel(signature).duration_ns / 1e6


@pytest.mark.parametrize(
    ("name", "detail", "share"),
    [
        ("triton_poi", {"kind": "pointwise", "tiled": 0}, "pointwise"),
        ("triton_poi", {"kind": "pointwise", "tiled": 1}, "layout"),
        ("triton_per", {"kind": "persistent reduction", "tiled": 0}, "persistent reduction"),
        ("triton_red", {"kind": "reduction", "tiled": 0}, "reduction"),
    ],
)
def test_a_kind_reaches_its_share_of_the_bandwidth(name, detail, share):
    gpu = gpus.find("RTX4090")
    expected = 2e3 * GB / (streams.bandwidth(gpu) * generated.fitted_share(share))
    assert milliseconds("RTX4090", kernel(name, GB, GB, **detail)) == pytest.approx(expected, rel=0.01)


def test_a_row_that_is_read_again_costs_where_the_rows_in_flight_outgrow_l2():
    once = kernel("triton_red", GB, GB, kind="reduction", rows=1000)
    short = kernel("triton_red", GB, GB, kind="reduction", rows=1_000_000, again=GB)
    long = kernel("triton_red", GB, GB, kind="reduction", rows=1000, again=GB)
    assert milliseconds("RTX4090", short) == milliseconds("RTX4090", once)
    assert milliseconds("RTX4090", long) == pytest.approx(1.5 * milliseconds("RTX4090", once), rel=0.05)


def convolution(weight: tuple[int, ...], channels: int, last: int) -> Signature:
    x, out = (256, channels, 28, 28), (256, weight[0], 28, 28)
    size = 2 * 256 * 28 * 28
    flops = 2 * 256 * 28 * 28 * weight[0] * weight[1] * weight[2] * weight[3]
    detail = (("channels_last", 1),) * last
    shapes = (x, weight, out)
    return Signature("aten::convolution", shapes, ("float16",) * 3, 2, flops, size * channels, size * weight[0], detail)


@pytest.mark.parametrize(
    ("weight", "channels"), [((256, 256, 3, 3), 256), ((256, 256, 1, 1), 256), ((256, 32, 3, 3), 256)]
)
def test_channels_last_have_shares_of_their_own(weight, channels):
    """Before CUDA 12 there is nothing that they were fitted on."""
    gpu = gpus.find("RTX4090")
    last = convolution(weight, channels, 1)
    old, new = CostModel(gpu, (11, 8)).kernel(last), CostModel(gpu, (12, 8)).kernel(last)
    assert new.duration_ns != old.duration_ns
    assert CostModel(gpu, (12, 8)).kernel(convolution(weight, channels, 0)).duration_ns != new.duration_ns
