"""MXNet's listings of the documents run unchanged on emulated GPUs and print what the documents print."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
import listings


# mission 9, 12, 13, 21, 22, 24, 26, 29, 30, 31, 35, 36, 37, 39, 50, 53, 54, 56, 57, 58, 59, 60, 61
@pytest.mark.parametrize("name", listings.names("mxnet"))
def test_listing_prints_what_the_document_prints(name, tmp_path):
    stdout, _ = listings.run(tmp_path, "mxnet", name)
    assert listings.differences("mxnet", name, stdout) == []


# mission 22, 23
def test_without_gpus_the_listings_use_the_cpu(tmp_path):
    stdout, _ = listings.run(tmp_path, "mxnet", "s4_gpus", emulated=False)
    lines = listings.lines(stdout)
    assert lines[1:3] == ["0", "(cpu(0), cpu(0), [cpu(0)])"]
    assert lines[-1] == "cpu(0)"
    stdout, _ = listings.run(tmp_path, "mxnet", "s0_trainer", emulated=False)
    assert "cpu(0)" in stdout
    assert "gpu" not in stdout
