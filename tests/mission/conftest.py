"""What the mission's tests share: fresh emulated GPUs for each test, and counting in their trace."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import windtunnel

LISTINGS = Path(__file__).parents[1] / "programs" / "mission" / "pytorch"


@pytest.fixture
def session():
    """Two emulated V100s, the documents' card."""
    with windtunnel.emulate("2xV100") as session:
        yield session


@pytest.fixture
def count(session):
    """A function that says how many records of a kind there have been since it was last asked."""
    seen = {}

    def count(kind):
        total = sum(record.kind == kind for record in session.trace)
        new = total - seen.get(kind, 0)
        seen[kind] = total
        return new

    return count


@pytest.fixture
def run(tmp_path):
    """A function that runs a program's text under `windtunnel run` and returns the finished process."""

    def run(source, *options, arguments=(), **environment):
        script = tmp_path / "program.py"
        script.write_text(source, encoding="utf-8")
        command = [sys.executable, "-m", "windtunnel", "run", *(options or ("-q", "--gpus", "2xV100"))]
        return subprocess.run(
            [*command, str(script), *arguments],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture
def functions_of():
    """A function that gives the functions that a listing defines, by name."""

    def functions_of(name):
        path = LISTINGS / f"{name}.py"
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        names = {"torch": torch}
        exec(compile(tree, str(path), "exec"), names)
        return names

    return functions_of
