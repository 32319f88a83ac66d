"""What lies around a program must not change what it does under `windtunnel run`."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.long
"""Each starts programs of its own."""


def test_a_folder_named_like_a_framework_is_no_framework(tmp_path):
    (tmp_path / "jax").mkdir()
    program = tmp_path / "program.py"
    program.write_text(
        "import importlib.util\n"
        "import torch\n"
        "print(importlib.util.find_spec('jax') is not None, torch.cuda.device_count())\n"
        "torch.optim.SGD([torch.zeros(1, device='cuda', requires_grad=True)]).step()\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "windtunnel", "run", "-q", "--gpus", "2xV100", str(program)]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout, done.returncode) == ("True 2\n", 0), done.stderr
