"""Copies and collectives against published bandwidths, in bands; test_collectives.py has more of the latter."""

from __future__ import annotations

import pytest

from windtunnel import gpus
from windtunnel.cost import CostModel

MIB = 1 << 20


def rate(cost_model, source, destination, pinned=True, size=256 * MIB):
    """GB/s."""
    return size / cost_model.copy_ns(size, source, destination, pinned)


@pytest.mark.parametrize(
    ("name", "low", "high"), [("V100", 11.5, 12.8), ("A100", 24.0, 27.0), ("H100", 50.0, 58.0), ("T4", 11.5, 12.8)]
)
def test_pinned_copies_reach_what_bandwidthtest_shows(name, low, high):
    cost_model = CostModel(gpus.find(name))
    assert low <= rate(cost_model, -1, 0) <= high
    assert rate(cost_model, 0, -1) == rate(cost_model, -1, 0)


def test_pinned_is_faster_than_pageable():
    """# mission 99"""

    def is_faster(name, size):
        cost_model = CostModel(gpus.find(name))
        return cost_model.copy_ns(size, -1, 0, True) < cost_model.copy_ns(size, -1, 0, False)

    cases = [(name, size) for name in gpus.names() for size in (4, 4096, MIB, 256 * MIB)]
    assert not [case for case in cases if not is_faster(*case)]


def test_pageable_copies_on_pcie_3():
    assert 3.0 <= rate(CostModel(gpus.find("V100")), -1, 0, pinned=False) <= 6.5


def test_peer_copies_use_nvlink_where_there_is_one():
    sxm, pcie = CostModel(gpus.find("V100-SXM2-16GB")), CostModel(gpus.find("V100-PCIe-32GB"))
    assert 44 <= rate(sxm, 0, 1) <= 50
    assert 8 <= rate(pcie, 0, 1) <= 11
    assert 250 <= rate(CostModel(gpus.find("A100")), 0, 1) <= 290


def test_copies_between_gpus_that_are_no_peers_go_through_the_host():
    """NVIDIA/nccl#814 and #1264: p2pBandwidthLatencyTest with P2P disabled, PCIe 4 and 5."""
    assert 20 <= rate(CostModel(gpus.find("RTX4090")), 0, 1) <= 23
    assert 35 <= rate(CostModel(gpus.find("RTX5090")), 0, 1) <= 39
    assert 11_000 <= CostModel(gpus.find("RTX3090")).copy_ns(4, 0, 1, True) <= 21_000


def test_copies_within_a_device_are_fastest():
    for name in gpus.names():
        cost_model = CostModel(gpus.find(name))
        assert rate(cost_model, 0, 0) > rate(cost_model, 0, 1)


def test_small_copies_are_latency():
    assert 1_000 <= CostModel(gpus.find("V100")).copy_ns(4, 0, -1, True) <= 10_000


@pytest.mark.parametrize(
    ("name", "ranks", "low", "high"),
    [("V100", 8, 115, 140), ("A100", 8, 210, 245), ("H100", 8, 430, 480), ("V100", 2, 38, 50), ("T4", 2, 6, 12)],
)
def test_bus_bandwidth_of_all_reduce(name, ranks, low, high):
    size = 1 << 30
    seconds = CostModel(gpus.find(name)).collective_ns("all_reduce", size, ranks)
    assert low <= 2 * (ranks - 1) / ranks * size / seconds <= high


def test_collectives_grow_with_size_and_ranks():
    cost_model = CostModel(gpus.find("A100"))
    for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send", "gather", "reduce"):
        times = [cost_model.collective_ns(name, size, 4) for size in (4, 1 << 10, 1 << 20, 1 << 28)]
        assert times == sorted(times)
        assert cost_model.collective_ns(name, 1 << 20, 2) <= cost_model.collective_ns(name, 1 << 20, 8)
        assert cost_model.collective_ns(name, 4, 2) >= 5_000


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather():
    cost_model = CostModel(gpus.find("A100"))
    size, ranks = 1 << 30, 8
    both = cost_model.collective_ns("reduce_scatter", size, ranks) + cost_model.collective_ns(
        "all_gather", size // ranks, ranks
    )
    assert cost_model.collective_ns("all_reduce", size, ranks) == pytest.approx(both, rel=0.05)


def test_one_rank_moves_nothing_over_links():
    assert CostModel(gpus.find("A100")).collective_ns("barrier", 0, 1) < 20_000
