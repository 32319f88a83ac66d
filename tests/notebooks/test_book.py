"""The book's chapter on GPUs as its PyTorch notebook; tests/on_jax, on_tensorflow and on_mxnet have the others."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
import listings

import notebooks

pytestmark = pytest.mark.long
"""Each starts a kernel."""


# mission 6, 9, 13, 24
@pytest.mark.parametrize("name", ["s0_gpus", "s0_trainer", "s4_gpus"])
def test_the_notebook_shows_what_the_book_shows(name, tmp_path):
    shown = notebooks.listing(tmp_path, "pytorch", name)
    assert listings.differences("pytorch", name, shown) == []
