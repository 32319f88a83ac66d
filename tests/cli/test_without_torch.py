"""Where PyTorch is missing, and on Windows, a command that cannot go on says so in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "jax", "tensorflow", "mxnet"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])

sys.meta_path.insert(0, Blocked())
"""
WINDOWS = "import sys, shutil, signal, subprocess, importlib, pkgutil; sys.platform = 'win32'\n"
SENTENCE = "PyTorch is not installed: pip install 'windtunnel[torch]'\n"


def python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", ["experiment matmul", "run x.py", "plan x.py --gpus T4", "verify x.py", "calibrate"])
def test_a_command_that_needs_torch_says_how_to_get_it(words: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").touch()
    done = python(tmp_path, f"{BLOCKED}\nfrom windtunnel.cli import main\nmain({words.split()!r})")
    assert (done.returncode, done.stderr) == (2, f"windtunnel: {SENTENCE}")


@pytest.mark.parametrize("code", ["from windtunnel import torch", "from windtunnel.train import Trainer"])
def test_a_program_that_needs_torch_gets_the_same_sentence_as_an_import_error(code: str, tmp_path: Path) -> None:
    done = python(tmp_path, BLOCKED + code)
    assert done.stderr.endswith(f"MissingPackageError: {SENTENCE}")
    assert python(tmp_path, f"{BLOCKED}\ntry:\n    {code}\nexcept ImportError as e:\n    print(e)").stdout == SENTENCE


def test_windows_is_one_sentence(tmp_path: Path) -> None:
    done = python(
        tmp_path,
        f"{WINDOWS}import runpy; sys.argv = ['windtunnel']; runpy.run_module('windtunnel', run_name='__main__')",
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "WSL" in done.stderr
