"""What a power limit leaves of products."""

import pytest

from windtunnel.cost import power
from windtunnel.gpus import find


@pytest.mark.parametrize(("key", "measured"), [("A10", 0.62), ("A40", 0.83), ("RTXA6000", 0.84), ("L20", 1.0)])
def test_cards_with_fewer_watts_keep_less(key, measured):
    """# issue 40: FP32 products of other people's READMEs and issues, over the largest card's."""
    assert power.sustained_share(find(key)) == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize(
    ("key", "share"), [("RTX3090", 1.0), ("RTX4090", 1.1), ("L4", 0.4), ("H100", 1.0), ("T4", 0.55)]
)
def test_a_share_of_its_own_counts(key, share):
    assert power.sustained_share(find(key)) == share


@pytest.mark.parametrize(
    ("key", "measured"),
    [("A40", 0.72), ("RTXA6000", 0.58), ("A10", 0.42), ("L4", 0.49), ("L40S", 0.65), ("L20", 0.98), ("RTX4090", 1.1)],
)
def test_products_in_16_bits_lose_more_where_tensor_cores_run_at_full_rate(key, measured):
    """Products of 8,192 (zzc0721/torch-performance-test-data, stas00/ml-engineering), over the largest card's."""
    assert power.sustained_share(find(key), "fp16") == pytest.approx(measured, rel=0.18)


def test_cards_of_other_generations_have_one_share():
    assert power.sustained_share(find("T4"), "fp16") == power.sustained_share(find("T4")) == 0.55
