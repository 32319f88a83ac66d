"""JAX's listings of the documents run unchanged on emulated GPUs and print what the documents print."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
import listings


# mission 9, 12, 13, 21, 24, 26, 29, 31, 35, 36, 37, 52, 53, 54, 56, 58, 59
@pytest.mark.parametrize("name", listings.names("jax"))
def test_listing_prints_what_the_document_prints(name, tmp_path):
    stdout, _ = listings.run(tmp_path, "jax", name, "--compat", "d2l")
    assert listings.differences("jax", name, stdout) == []


def test_without_gpus_the_trainer_listing_uses_the_cpu(tmp_path):
    stdout, _ = listings.run(tmp_path, "jax", "s0_trainer", emulated=False)
    assert listings.lines(stdout) == ["20 1 1 0", "{'cpu'} [True, True]", "True [0, 20]", "True", "[]"]
