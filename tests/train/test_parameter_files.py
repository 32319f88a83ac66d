"""Parameters on disk, of PyTorch and of the other frameworks: what is kept, what is refused, what cannot be written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from windtunnel.errors import UsageError
from windtunnel.train import load_parameters, save_parameters
from windtunnel.train.frameworks import parameters

ARRAYS = {
    "scalar": np.float32(3).reshape(()),
    "empty": np.zeros((0, 3)),
    "turned": np.arange(6.0).reshape(2, 3).T,
    "half": np.ones(3, np.float16),
    "complex": np.ones(2, np.complex64) * 1j,
    "yes": np.array([True, False]),
    "great": np.array([2**64 - 1], np.uint64),
}


def test_arrays_of_every_shape_come_back(tmp_path: Path) -> None:
    parameters.write(tmp_path / "p", ARRAYS)
    back = parameters.read(tmp_path / "p", {name: array.shape for name, array in ARRAYS.items()})
    for name, array in ARRAYS.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


@pytest.mark.parametrize("array", [np.ones(2, np.complex128), np.array(["x"]), np.array([None])])
def test_a_type_that_the_format_lacks_is_refused_by_name(array: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(f"cannot hold 'odd' of type {array.dtype}")):
        parameters.write(tmp_path / "p", {"odd": array})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["missing/p", "folder"])
def test_a_file_that_cannot_be_written_is_one_sentence(path: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="could not be written"):
        parameters.write(tmp_path / path, ARRAYS)
    with pytest.raises(UsageError, match="could not be written"):
        save_parameters(nn.Linear(2, 2), tmp_path / path)
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


FULL = """
import resource, signal, sys, torch
sys.dont_write_bytecode = True  # what is imported under the limit would be cut short for every later process
from windtunnel.errors import UsageError
from windtunnel.train import save_parameters
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    save_parameters(torch.nn.Linear(200, 200), sys.argv[1])
except UsageError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "p"
    model = nn.Linear(2, 2)
    save_parameters(model, path)
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True)
    assert "could not be written" in done.stdout
    assert [one.name for one in tmp_path.iterdir()] == ["p"]
    assert torch.equal(load_parameters(nn.Linear(2, 2), path).weight, model.weight)
