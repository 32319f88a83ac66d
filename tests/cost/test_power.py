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
