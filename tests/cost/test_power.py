"""What a power limit leaves of products."""

import pytest

from windtunnel.cost import power
from windtunnel.cost.sustained import Sustained
from windtunnel.gpus import find


@pytest.mark.parametrize(
    ("key", "measured"),
    [("A10", 0.62), ("A40", 0.83), ("RTXA6000", 0.84), ("RTX4090", 0.87), ("L20", 0.79), ("L40S", 0.65)],
)
def test_cards_with_fewer_watts_keep_less(key, measured):
    """FP32 products of other people's READMEs and issues, over the largest card's; Ada's over an L4's constants."""
    assert power.sustained_share(find(key), "fp32") == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize(
    ("key", "share"), [("RTX3090", 1.0), ("RTX4090", 1.1), ("L4", 0.4), ("L40S", 0.65), ("T4", 0.55)]
)
def test_a_share_of_its_own_counts(key, share):
    assert power.sustained_share(find(key), "tf32") == pytest.approx(share)


@pytest.mark.parametrize(
    ("key", "measured"),
    [("A40", 0.72), ("RTXA6000", 0.58), ("A10", 0.42), ("L4", 0.49), ("L40S", 0.65), ("L20", 0.98), ("RTX4090", 1.1)],
)
def test_products_in_16_bits_lose_more_where_tensor_cores_run_at_full_rate(key, measured):
    """Products of 8,192 (zzc0721/torch-performance-test-data, stas00/ml-engineering), over the largest card's."""
    assert power.sustained_share(find(key), "fp16") == pytest.approx(measured, rel=0.18)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize(("key", "measured"), [("H100-PCIe", 0.79), ("H100-NVL", 0.82), ("H20", 1.18), ("H100", 1.0)])
def test_hoppers_tensor_cores_follow_the_watts(key, measured, precision):
    """Products of 4,096 and more and gated layers (zzc0721, Liger-Kernel), of the peak an SXM5 card's reach."""
    assert power.sustained_share(find(key), precision) == pytest.approx(measured, rel=0.05)


def test_hoppers_fp32_stays_under_the_limit():
    """KernelBench's products on an H100 PCIe reach of its peak what an SXM5 card's do."""
    assert power.sustained_share(find("H100-PCIe"), "fp32") == 1.0


def test_cards_of_other_generations_have_one_share():
    assert {power.sustained_share(find("T4"), precision) for precision in ("fp16", "tf32", "fp32")} == {0.55}


@pytest.mark.parametrize(("key", "is_met"), [("RTX5090", False), ("RTXPRO6000-Server", True), ("B200", True)])
def test_cards_with_many_watts_do_not_meet_the_limit_of_long_trainings(key, is_met):
    """An RTX 5090 has four times an H100's watts for each operation: products of 10,240 reach its peak (zzc0721)."""
    limit = Sustained(find(key))
    for number in range(40):
        limit.slowdown(9.5e6, number * 10_000_000)
    assert (limit.met is not None) is is_met
