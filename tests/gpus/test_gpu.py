"""The catalogue: every model loads, every fact has a source, and specs are read as the documentation says."""

from __future__ import annotations

from dataclasses import fields

import pytest

from windtunnel import gpus
from windtunnel.errors import UnknownGpuError, UsageError
from windtunnel.gpus import versions

ALL = [gpus.find(name) for name in gpus.names()]
LANES = {
    (3, 7): 192,
    (6, 0): 64,
    (6, 1): 128,
    (7, 0): 64,
    (7, 5): 64,
    (8, 0): 64,
    (8, 6): 128,
    (8, 9): 128,
    (9, 0): 128,
    (10, 0): 128,
    (10, 3): 128,
    (12, 0): 128,
}


def test_the_catalogue_holds_forty_models():
    assert len(ALL) >= 40
    assert gpus.DEFAULT in gpus.names()


def test_every_fact_has_a_source():
    assert not [gpu.key for gpu in ALL if set(gpu.sources) != facts_of(gpu)]
    kinds = ("vendor: ", "measured: ", "seen: ", "derived: ", "fitted: ", "from memory, to be verified", "the ")
    assert not [(gpu.key, source) for gpu in ALL for source in gpu.sources.values() if not source.startswith(kinds)]


def facts_of(gpu):
    """The facts of a GPU that need a source: those that it has, or that are not as of most."""
    described = {"key", "name", "aliases", "generation", "sources"}
    facts = {f.name for f in fields(gpu)} - described
    if gpu.price_usd_per_hour is None:
        facts -= {"price_usd_per_hour"}
    if gpu.sustained_share == 1.0:
        facts -= {"sustained_share"}
    if gpu.clock_share == 1.0:
        facts -= {"clock_share"}
    if gpu.peer_access:
        facts -= {"peer_access"}
    return facts


def test_peaks_follow_from_lanes_and_clock():
    def share(gpu):
        """The stated peak, of what the lanes and the clock give."""
        return gpu.peak_flops["fp32"] / (2 * LANES[gpu.compute_capability] * gpu.sm_count * gpu.clock_mhz * 1e6)

    assert not [gpu.key for gpu in ALL if not 0.89 <= share(gpu) <= 1.03]
    oldest = {"fp16": (6, 0), "bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9)}
    cases = [(gpu, precision) for gpu in ALL for precision in oldest]
    assert not [
        (gpu.key, precision)
        for gpu, precision in cases
        if (precision in gpu.peak_flops) != (gpu.compute_capability >= oldest[precision])
    ]


def test_memory_totals_agree():
    """nvidia-smi's total before driver 510 is CUDA's; since then it counts the reserved part too."""
    cuda = {gpu: gpu.memory_bytes / 2**20 for gpu in ALL}
    assert not [gpu.key for gpu in ALL if cuda[gpu] - 1 > gpu.smi_memory_mib_before_r510 + 250]
    assert not [gpu.key for gpu in ALL if not cuda[gpu] - 1 <= gpu.smi_memory_mib <= cuda[gpu] * 1.04]
    assert not [gpu.key for gpu in ALL if gpu.smi_total_mib("460.106.00") != gpu.smi_memory_mib_before_r510]
    assert not [gpu.key for gpu in ALL if gpu.smi_total_mib("535.104.05") != gpu.smi_memory_mib]


def test_the_documents_card():
    """# mission 2: 16160MiB and 300 W, as in the documents' tables."""
    v100 = gpus.find("V100")
    assert v100.key == "V100-SXM2-16GB"
    assert v100.name == "Tesla V100-SXM2-16GB"
    assert v100.memory_bytes == 16945512448
    assert v100.smi_total_mib("460.106.00") == 16160
    assert v100.power_limit_w == 300


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("v100-sxm2-16gb", "V100-SXM2-16GB"),
        ("tesla v100-sxm2-16GB", "V100-SXM2-16GB"),
        ("A100", "A100-SXM4-40GB"),
        ("H100", "H100-SXM5-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("rtx 4090", "RTX4090"),
        ("rtx_3090", "RTX3090"),
        ("3090", "RTX3090"),
        ("t4", "T4"),
        ("l40s", "L40S"),
        ("A10", "A10"),
        ("4080", "RTX4080"),
        ("2080 Ti", "RTX2080Ti"),
        ("RTX A6000", "RTXA6000"),
        ("H100-96GB-HBM2e", "H100-SXM5-96GB-HBM2e"),
        ("H20", "H20-96GB"),
        ("GH200", "GH200-96GB"),
        ("GB200", "GB200-186GB"),
        ("B300", "B300-288GB"),
        ("RTX PRO 6000", "RTXPRO6000-Workstation"),
        ("RTX PRO 6000 Max-Q", "RTXPRO6000-MaxQ"),
        ("Quadro RTX 8000", "QuadroRTX8000"),
        ("TITAN RTX", "TITANRTX"),
    ],
)
def test_find_by_key_alias_and_name(name, key):
    assert gpus.find(name).key == key


def test_aliases_are_unique():
    names = [alias.lower() for gpu in ALL for alias in {*gpu.aliases, gpu.name, gpu.key}]
    plain = {name.replace(" ", "-"): 0 for name in names}
    for name in {n.replace(" ", "-") for n in names}:
        plain[name] = len({gpu.key for gpu in ALL if name in _names(gpu)})
    assert set(plain.values()) == {1}


def _names(gpu):
    return {alias.lower().replace(" ", "-") for alias in (*gpu.aliases, gpu.name, gpu.key)}


@pytest.mark.parametrize(
    ("spec", "keys"),
    [
        ("2", ["V100-SXM2-16GB"] * 2),
        ("0", []),
        ("V100", ["V100-SXM2-16GB"]),
        ("2xV100", ["V100-SXM2-16GB"] * 2),
        ("2XV100", ["V100-SXM2-16GB"] * 2),
        ("V100:2", ["V100-SXM2-16GB"] * 2),
        ("V100,A100", ["V100-SXM2-16GB", "A100-SXM4-40GB"]),
        ("2xV100, RTX 4090:1 ,1", ["V100-SXM2-16GB", "V100-SXM2-16GB", "RTX4090", "V100-SXM2-16GB"]),
        ("3090", ["RTX3090"]),
    ],
)
def test_parse(spec, keys):
    assert [gpu.key for gpu in gpus.parse(spec)] == keys


@pytest.mark.parametrize("spec", ["", ",", "2x", "-1", "0xV100", "V100,,A100", "1.5", "99999999", "2000"])
def test_parse_refuses_what_is_no_spec(spec):
    with pytest.raises(UsageError, match=r"write 2xV100|ask for fewer"):
        gpus.parse(spec)


def test_unknown_gpu_names_the_nearest():
    with pytest.raises(UnknownGpuError, match=r"^no GPU is called 'V10': did you mean V100-SXM2-16GB"):
        gpus.find("V10")
    with pytest.raises(UnknownGpuError, match="`windtunnel gpus` lists all"):
        gpus.parse("2xRadeon")


@pytest.mark.parametrize(
    ("cuda", "driver"),
    [((11, 2), "460.106.00"), ((12, 7), "560.35.05"), ((7, 0), "375.26"), ((13, 5), "580.65.06")],
)
def test_driver_of_a_cuda_version(cuda, driver):
    assert versions.driver_version(cuda) == driver


def test_context_and_gap():
    """# mission 3: a device shows 3 MiB more than its process."""
    v100, h100 = gpus.find("V100"), gpus.find("H100")
    assert versions.context_bytes(v100, (11, 2)) == 1343 << 20
    assert versions.context_bytes(v100, (12, 4)) == 300 << 20
    assert versions.context_bytes(h100, (12, 4)) == 400 << 20
    assert versions.communicator_bytes(v100, 2) == 544 << 20
    assert versions.communicator_bytes(h100, 8) == 688 << 20
    assert versions.communicator_bytes(v100, 1) == 0
    assert versions.communicator_bytes(gpus.find("T4"), 2) == 91 << 20
    assert versions.communicator_bytes(gpus.find("T4"), 4) == 115 << 20
    assert versions.process_gap_bytes() == 3 << 20


@pytest.mark.parametrize(
    ("spec", "torch", "cuda"),
    [
        ("A100", "2.6.0", (12, 4)),
        ("A100", "2.10.0+cpu", (12, 8)),
        ("2xH100", "2.13.0", (13, 0)),
        ("V100", "2.13.0", (12, 6)),
        ("V100,H100", "2.13.0", (12, 6)),
        ("K80", "2.6.0", (11, 8)),
        ("A100", "2.13.0+cu126", (12, 6)),
        ("A100", "2.13.0a0+git1a2b3c4", (13, 0)),
        ("H100", "of our own", (11, 8)),
        ("2", None, (11, 2)),
    ],
)
def test_a_program_runs_with_the_cuda_of_pytorchs_wheels(spec, torch, cuda):
    assert versions.runtime_cuda(gpus.parse(spec), torch) == cuda


@pytest.mark.parametrize(
    ("spec", "torch", "cuda"),
    [
        ("H100", "2.13.0", (13, 0)),
        ("H100", "2.6.0", (12, 4)),
        ("B200", "2.6.0", (12, 8)),
        ("V100", "2.13.0", (12, 6)),
        ("V100", None, (11, 2)),
        ("H100", None, (11, 8)),
        ("K80", "2.6.0", (11, 4)),
    ],
)
def test_the_driver_follows_the_newest_of_gpu_and_pytorch(spec, torch, cuda):
    assert versions.driver_cuda(gpus.parse(spec), torch) == cuda


def test_default_cuda_knows_the_gpu():
    assert versions.default_cuda(gpus.parse("2")) == (11, 2)
    assert versions.default_cuda(gpus.parse("V100,H100")) == (11, 8)
    assert versions.default_cuda(()) == (11, 2)


@pytest.mark.parametrize("text", ["11", "", "a.b", "11.x", "-1.2"])
def test_parse_version_refuses(text):
    with pytest.raises(UsageError, match="not a CUDA version"):
        versions.parse_version(text)


def test_parse_version():
    assert versions.parse_version("11.2.1") == (11, 2)


def test_a_files_first_lines_have_all_its_names() -> None:
    """The catalogue looks at no more of the files to find an alias."""
    for key in gpus.names():
        whole = gpus.find(key)
        assert [gpus.find(name) for name in (*whole.aliases, whole.name)] == [whole] * (len(whole.aliases) + 1)
