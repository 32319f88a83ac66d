"""A few of the random kernels that `make differential-cuda` runs by the thousand."""

from __future__ import annotations

import pytest
from tools.differential.cuda import judge

pytest.importorskip("llvmlite")


@pytest.mark.parametrize("seed", [2, 3, 5, 7, 9, 11])
def test_random_kernel(seed: int) -> None:
    assert judge(seed) == []
