"""A program with a module of its own that has a framework's name runs as it does without windtunnel, and is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.long
"""Each starts programs of its own."""


@pytest.mark.parametrize("name", ["torch", "jax", "tensorflow"])
def test_a_module_of_the_programs_own_is_left_alone(windtunnel, tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("mine = 1\n")
    (tmp_path / "program.py").write_text(f"import {name}\nprint({name}.mine)\n")
    done = windtunnel("run", "program.py")
    assert (done.returncode, done.stdout) == (0, "1\n")
    expected = f"no report: `import {name}` found {tmp_path}/{name}.py, which is not that framework: rename the file"
    assert done.stderr == f"windtunnel: {expected}\n"


def test_its_own_error_is_the_programs(windtunnel, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    done = windtunnel("run", "-c", "import torch; torch.ones(3)")
    assert done.returncode == 1
    assert "AttributeError: module 'torch' has no attribute 'ones'" in done.stderr


def test_ranks_are_started_although_a_file_beside_the_program_has_the_name(windtunnel, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "program.py").write_text("import torch\nprint(torch.ones(1, device='cuda').device)\n")
    done = windtunnel("run", "--gpus", "2", "--nproc-per-node", "2", "elsewhere/program.py")
    assert done.stdout.splitlines() == ["cuda:0", "cuda:0"], done.stderr
