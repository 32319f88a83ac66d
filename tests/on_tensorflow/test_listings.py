"""TensorFlow's listings of the documents run unchanged on emulated GPUs and print what the documents print.

They need Keras 2 (tf_keras), as the documents had: Keras 3 variables have no `device`.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "programs"))
import listings


# mission 9, 12, 13, 21, 22, 24, 26, 29, 35, 36, 37, 50, 53, 54
@pytest.mark.parametrize("name", listings.names("tensorflow"))
def test_listing_prints_what_the_document_prints(name, tmp_path):
    stdout, stderr = listings.run(tmp_path, "tensorflow", name, TF_USE_LEGACY_KERAS="1", TF_CPP_MIN_LOG_LEVEL="0")
    assert listings.differences("tensorflow", name, stdout) == []
    devices = ", ".join(f"'/job:localhost/replica:0/task:0/device:GPU:{i}'" for i in (0, 1))
    assert f"INFO:tensorflow:Using MirroredStrategy with devices ({devices})" in stderr


# mission 22, 23
def test_without_gpus_the_listings_use_the_cpu(tmp_path):
    stdout, _ = listings.run(
        tmp_path, "tensorflow", "s4_gpus", emulated=False, TF_USE_LEGACY_KERAS="1", CUDA_VISIBLE_DEVICES="-1"
    )
    lines = listings.lines(stdout)
    assert lines[3] == "0"
    assert lines[-2:] == [
        "('/job:localhost/replica:0/task:0/device:CPU:0',",
        "'/job:localhost/replica:0/task:0/device:CPU:0')",
    ]
