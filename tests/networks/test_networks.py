"""The catalogue of networks, the files that describe others, and how groups lie on nodes."""

import pytest

from helpers.nccl_table import TABLE
from windtunnel import gpus, networks
from windtunnel.errors import FileFormatError, UsageError
from windtunnel.networks import Spread


def test_each_fact_of_a_network_has_a_source():
    every = {key: networks.find(key, "") for key in networks.names()}
    facts = {"transport", "gpus_per_node", "nics_per_node", "nic_bandwidth_bytes_per_s"}
    assert not [key for key, network in every.items() if not facts <= network.sources.keys()]
    assert not [key for key, network in every.items() if network.key != key]
    assert not [key for key, network in every.items() if not set(network.default_for) <= set(gpus.names())]


def test_no_gpu_has_two_usual_networks():
    usual = [gpu for key in networks.names() for gpu in networks.find(key, "").default_for]
    assert len(usual) == len(set(usual))


@pytest.mark.parametrize(
    ("gpu", "key"),
    [("H100-SXM5-80GB", "dgx-h100"), ("A100-SXM4-80GB", "dgx-a100"), ("GB200-186GB", "gb200-nvl72"),
     ("RTX4090", "ethernet-100")],
)  # fmt: skip
def test_a_gpu_has_a_usual_network(gpu, key):
    assert networks.default_for(gpu).key == key


@pytest.mark.parametrize("name", ["p5", "P5.48xlarge", " p5 "])
def test_names_and_aliases(name):
    assert networks.find(name, "").key == "p5"


def test_an_unknown_name_is_refused_with_near_ones():
    with pytest.raises(UsageError, match="did you mean p5"):
        networks.find("p5x", "")


def test_a_file_describes_a_network(tmp_path):
    file = tmp_path / "ours.toml"
    file.write_text(
        'key = "ours"\nname = "ours"\ntransport = "roce"\ngpus_per_node = 8\nnics_per_node = 2\n'
        "nic_bandwidth_bytes_per_s = 25e9\noversubscription = 3.0\n"
    )
    found = networks.find(str(file), "")
    assert (found.nics_per_node, found.oversubscription) == (2, 3.0)
    assert networks.from_description(found.describe()) == found


@pytest.mark.parametrize("text", ["nics_per_node = 2", "key = 1", "not toml at all ["])
def test_a_file_that_describes_none_is_refused(tmp_path, text):
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(FileFormatError, match=r"bad\.toml"):
        networks.find(str(file), "")


def test_what_nccl_tests_printed_is_read(tmp_path):
    file = tmp_path / "run.txt"
    file.write_text(TABLE.format(name="all_reduce_perf", other="pt02"))
    found = networks.find(str(file), "H100-SXM5-80GB")
    (table,) = found.measured
    assert (table.collective, table.ranks, table.nodes) == ("all_reduce", 4, 2)
    assert table.size_bytes == [1024, 1 << 20, 1 << 30]
    assert table.time_us == [40.0, 80.0, 5000.0]
    assert found.nics_per_node == networks.default_for("H100-SXM5-80GB").nics_per_node
    assert networks.from_description(found.describe()) == found


def test_lines_with_the_launchers_prefix_are_read(tmp_path):
    file = tmp_path / "run.txt"
    plain = TABLE.format(name="alltoall_perf", other="pt02")
    file.write_text("\n".join(f"[1,0]<stdout>:{line}" for line in plain.splitlines()))
    (table,) = networks.find(str(file), "H100").measured
    assert (table.collective, table.time_us) == ("all_to_all", [40.0, 80.0, 5000.0])


def test_what_is_no_number_is_no_row(tmp_path):
    file = tmp_path / "run.txt"
    file.write_text(TABLE.format(name="all_reduce_perf", other="pt02").replace("80.0", "80.0.0"))
    (table,) = networks.find(str(file), "H100-SXM5-80GB").measured
    assert 1 << 20 not in table.size_bytes


@pytest.mark.parametrize(
    ("name", "other", "words"),
    [("all_reduce_perf", "pt01", "one node"), ("something", "pt02", ""), (None, None, "neither")],
)
def test_outputs_that_tell_too_little_are_refused(tmp_path, name, other, words):
    file = tmp_path / "run.txt"
    file.write_text("nothing" if name is None else TABLE.format(name=name, other=other))
    if words:
        with pytest.raises(FileFormatError, match=words):
            networks.find(str(file), "")
    else:  # of four ranks only an all-reduce's bus bandwidth is one and a half times the algorithm's
        assert networks.find(str(file), "").measured[0].collective == "all_reduce"


@pytest.mark.parametrize(
    ("ranks", "per_node", "spread"),
    [
        (range(16), 0, Spread(16)),
        (range(8), 8, Spread(8)),
        (range(64), 8, Spread(64, 8)),
        (range(0, 64, 8), 8, Spread(8, 8, 1, 8)),
        (range(0, 64, 2), 8, Spread(32, 8, 1, 2)),
        (range(16), 4, Spread(16, 4)),
        ((0, 1, 32, 33), 8, Spread(4, 2, 4, 4)),
    ],
)
def test_how_ranks_lie_on_nodes(ranks, per_node, spread):
    assert Spread.of_ranks(list(ranks), per_node) == spread
    assert Spread.of_detail((("ranks", spread.ranks), ("group", "0"), *spread.detail())) == spread


def test_nodes_of_one_nvlink_are_one_domain():
    assert Spread(72, 18).domains(18) == 1
    assert Spread(144, 36).domains(18) == 2
    assert Spread(4, 4, 18).domains(18) == 4
