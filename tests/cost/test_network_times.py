"""Collectives between nodes: they grow with the size, share NICs, and meet rows that people published."""

import math

import msgspec
import numpy as np
import pytest
from tools.calibration.calibrate_network import NetworkRow, band_rows, held
from tools.corpus import tables

from windtunnel import gpus, networks
from windtunnel.cost.model import CostModel
from windtunnel.networks import Spread

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")
NIC_GB_S = 50.0


def time_us(gpu, network, kind, size, spread, **settings):
    found = msgspec.structs.replace(networks.find(network, gpus.find(gpu).key), **settings)
    model = CostModel(gpus.find(gpu), network=found)
    return model.collective_ns(kind, size, spread.ranks, spread) / 1000


def test_times_grow_with_the_size():
    def grow(network, kind):
        spread = Spread(2, 2, 1, 8) if kind == "send" else Spread(64, 8)
        times = [time_us("H100", network, kind, 4 << shift, spread) for shift in range(0, 29, 2)]
        return times == sorted(times) and times[0] > 0

    cases = [(network, kind) for network in networks.names() for kind in KINDS]
    assert not [case for case in cases if not grow(*case)]


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize("size", [KIB, MIB, GIB])
def test_more_nodes_take_no_less(kind, size):
    total = [time_us("H100", "dgx-h100", kind, size // n if kind == "all_gather" else size, Spread(n, n // 8))
             for n in (16, 64, 512)]  # fmt: skip
    assert total[0] <= total[1] * 1.01 <= total[2] * 1.02


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_rings_pass_no_more_than_the_nics(kind):
    """Eight NICs of 400 Gb/s are 400 GB/s, of which NCCL reaches no more than 98 % (nccl-tests issue 290)."""
    ranks = 256
    total = 8 * GIB
    brought = total // ranks if kind == "all_gather" else total
    passed = (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks * total / 1e3
    assert passed / time_us("H100", "dgx-h100", kind, brought, Spread(ranks, ranks // 8)) <= 400.0


def test_two_nodes_may_be_faster_than_their_nics():
    """By NCCL's tree each of two nodes sends what it brings once (NVIDIA/nccl-tests issue 22): 487 GB/s on p5."""
    bus = 2 * 15 / 16 * 8 * GIB / 1e3 / time_us("H100", "p5", "all_reduce", 8 * GIB, Spread(16, 2))
    assert 430 < bus < 530


@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_all_to_all_is_bound_by_each_gpus_own_nic(nodes):
    """NVIDIA: "general formula is N/(N-1)x the bandwidth per GPU, N being the number of nodes" (nccl-tests 130)."""
    ranks, size = 8 * nodes, GIB
    bus = (ranks - 1) / ranks * size / 1e3 / time_us("H100", "dgx-h100", "all_to_all", size, Spread(ranks, nodes))
    most = min(NIC_GB_S * nodes / (nodes - 1), 400.0)
    assert 0.75 * most < bus <= 1.02 * most


def test_one_gpu_of_a_node_has_one_nic():
    """Two nodes of one H100 each reach 41 of 50 GB/s although there are four NICs (NVIDIA/nccl issue 1357)."""
    bus = 32 * MIB / 1e3 / time_us("H100", "dgx-h100", "all_reduce", 32 * MIB, Spread(2, 2))
    assert 25 < bus < 50


def test_groups_side_by_side_share_the_nics_of_a_node():
    alone, eight = (time_us("A100", "p4d", "all_reduce", GIB, Spread(8, 8, 1, sharing)) for sharing in (1, 8))
    assert eight == pytest.approx(2 * alone, rel=0.1)  # a NIC for each two of eight GPUs
    alone, eight = (time_us("H100", "dgx-h100", "all_reduce", GIB, Spread(8, 8, 1, sharing)) for sharing in (1, 8))
    assert eight == pytest.approx(alone, rel=0.01)  # a NIC a GPU


def test_an_oversubscribed_fabric_is_slower(tmp_path):
    text = (networks.network.FOLDER / "dgx-h100.toml").read_text()
    (tmp_path / "thin.toml").write_text("oversubscription = 4.0\n" + text)
    usual, thin = (
        time_us("H100", name, "all_gather", 64 * MIB, Spread(64, 8))
        for name in ("dgx-h100", str(tmp_path / "thin.toml"))
    )
    assert 3.3 * usual < thin < 4.1 * usual  # on NVLink a little less than the NICs would pass


def test_a_rack_of_nvl72_is_one_nvlink():
    """CoreWeave's 72 GPUs: 839 GB/s at 4 GiB (coreweave/nccl-tests 43); two racks take no less."""
    time = time_us("GB200", "gb200-nvl72", "all_reduce", 4 * GIB, Spread(72, 18))
    assert time == pytest.approx(10_094, rel=0.25)
    assert time_us("GB200", "gb200-nvl72", "all_reduce", 4 * GIB, Spread(144, 36)) >= time


def test_a_measured_table_is_what_its_network_takes(tmp_path):
    rows = [(1 << shift, 100.0 + (1 << shift) / 50e3) for shift in range(10, 31)]
    hosts = [f"#  Rank {rank:2} Group  0 Pid 1 on host{rank // 8} device {rank % 8} [0x1] x" for rank in range(16)]
    lines = [f"{size} {size // 4} float sum -1 {time:.2f} {size / time / 1e3:.2f} 1.0 0" for size, time in rows]
    file = tmp_path / "nccl.txt"
    file.write_text("\n".join(["# Collective test starting: all_reduce_perf", *hosts, *lines]))
    for size, time in rows[::4]:
        assert time_us("H100", str(file), "all_reduce", size, Spread(16, 2)) == pytest.approx(time, rel=0.001)
    # The network is slower than modelled, so others are as well.
    for kind in ("all_gather", "reduce_scatter"):
        usual = time_us("H100", "dgx-h100", kind, 16 * MIB, Spread(64, 8))
        assert time_us("H100", str(file), kind, 16 * MIB, Spread(64, 8)) > 1.5 * usual


@pytest.mark.parametrize("size", [KIB, MIB, GIB])
def test_settings_leave_fewer_algorithms_and_protocols(size):
    spread = Spread(16, 2)
    free = time_us("H100", "dgx-h100", "all_reduce", size, spread)
    alone = [time_us("H100", "dgx-h100", "all_reduce", size, spread, algorithms=[name])
             for name in ("Ring", "Tree", "NVLSTree")]  # fmt: skip
    assert min(alone) == free
    assert time_us("H100", "dgx-h100", "all_gather", size, spread, algorithms=["Tree"]) == time_us(
        "H100", "dgx-h100", "all_gather", size, spread
    )
    by = [time_us("H100", "dgx-h100", "send", size, Spread(2, 2), protocols=[name]) for name in ("LL", "Simple")]
    assert min(by) == time_us("H100", "dgx-h100", "send", size, Spread(2, 2))


def test_gpus_without_a_switch_take_what_they_have():
    """NCCL falls back as well: an A100 has no NVLS."""
    alone = time_us("A100", "p4d", "all_reduce", MIB, Spread(16, 2), algorithms=["NVLSTree"])
    assert alone == time_us("A100", "p4d", "all_reduce", MIB, Spread(16, 2))


def test_two_nodes_by_rings_alone_take_twice_as_long():
    """p4d by NCCL_ALGO=RING reached 43.8 GB/s bus bandwidth (aws-samples/aws-efa-eks), p4de by trees 78.3."""
    times = [time_us("A100", "p4de", "all_reduce", 2 * GIB, Spread(16, 2), algorithms=[name])
             for name in ("Ring", "Tree")]  # fmt: skip
    assert times[0] / times[1] == pytest.approx(78.3 / 43.8, rel=0.1)


def test_one_node_is_timed_as_ever():
    model = CostModel(gpus.find("H100"), network=networks.find("ethernet-10", ""))
    assert model.collective_ns("all_reduce", MIB, 8, Spread(8)) == CostModel(gpus.find("H100")).collective_ns(
        "all_reduce", MIB, 8
    )


def published():
    return [row for row in tables.read("nccl_nodes.csv") if not row["notes"].startswith("problem")]


def test_the_constants_meet_what_was_published():
    errors = []
    for row in published():
        kind = "send" if row["collective"] == "sendrecv" else row["collective"]
        ranks, size = int(row["n_ranks"]), int(row["size_bytes"])
        brought = max(1, size // ranks) if kind == "all_gather" else size
        settings = {name: row[name].split() for name in ("algorithms", "protocols") if row[name]}
        found = time_us(row["gpu"], row["network"], kind, brought, Spread(ranks, int(row["n_nodes"])), **settings)
        errors.append(abs(math.log(found / float(row["time_us"]))))
    errors.sort()
    assert errors[len(errors) // 2] < 0.08
    assert errors[len(errors) * 9 // 10] < 0.4


def band(network, size):
    model = CostModel(gpus.find("H100"), network=networks.find(network, ""))
    return model.links.collective_band("all_reduce", size, 64, Spread(64, 8))


@pytest.mark.parametrize("size", [KIB, MIB, 64 * MIB])
def test_bands_are_wider_the_less_is_like_a_network(size):
    """p5 has rows, p5en has EFA as others have, and nobody's rows are of plain sockets."""
    p5, p5en, sockets = (band(name, size) for name in ("p5", "p5en", "ethernet-100"))
    assert (p5.distance, p5en.distance, sockets.distance) == ("own", "other", "unlike")
    assert p5.high / p5.low < p5en.high / p5en.low <= sockets.high / sockets.low


def test_few_rows_leave_the_band_of_networks_without_any():
    assert band("roce-400", 64 * MIB).distance == "other"


def test_bands_from_other_networks_hold():
    """Four of five rows of a network lie in the band that eleven others give, if it is as far off as they are."""

    def row(network, size, time_us):
        return NetworkRow(network, "all_reduce", "H100-SXM5-80GB", 16, 2, size, time_us, False, "", "")

    far = {"p4d": 1.1, "p4de": 0.8, "p5": 1.3, "dgx-a100": 0.75, "dgx-h100": 1.2}
    rows = [row(name, size, 100.0 * factor) for name, factor in far.items() for size in (KIB, MIB, 64 * MIB) * 4]
    rows += [row("p5", MIB, 130.0)] * 50
    times = np.full(len(rows), 100.0)
    inside = held(rows, times)
    assert [name for name in far if not all(inside[i] for i, one in enumerate(rows) if one.network == name)] == [
        "dgx-a100"
    ]
    for found in band_rows("other", rows, times):
        assert found["high"] == pytest.approx(1.3, abs=0.04)
        assert found["low"] * found["high"] == pytest.approx(1.0, abs=0.002)
