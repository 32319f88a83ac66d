"""Build the sdist and, from it, the wheel; then use the wheel in an empty environment, as somebody who ran pip would.

python -m tools.distribution [--keep FOLDER]      what `make dist` runs, with a Python that has the package `build`

The environment and the folder in which the commands run are temporary ones, so no checkout is near. What pip has
downloaded before it takes from its cache.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tools import ROOT

DIST = ROOT / "dist"
TEST = """
import pytest
import torch


@pytest.mark.gpus(2, model="V100")
def test_peer_copy(gpus):
    assert torch.ones(3, device=gpus[0]).to(gpus[1]).device == gpus[1]
"""
IN_SDIST = ("README.md", "LICENSE", "CHANGELOG.md", "src/windtunnel/py.typed", "tests/conftest.py", "docs/index.md")
IN_WHEEL = (
    "windtunnel/py.typed",
    "windtunnel/shim/bin/nvidia-smi",
    "windtunnel/gpus/V100-SXM2-16GB.toml",
    "windtunnel/reports/templates/report.css",
    "windtunnel/experiments/data/boston.csv",
    "windtunnel/programs/housing_data_parallel.py",
    "windtunnel/pages/command-line.md",
    "windtunnel/pages/SKILL.md",
)


class Use(NamedTuple):
    """A command in the empty environment, and what its output must match."""

    words: tuple[str, ...]
    output: str
    code: int = 0


WITHOUT_TORCH = (
    Use(("windtunnel", "--help"), r"Run PROGRAM, unchanged"),
    Use(("windtunnel", "gpus"), r"V100-SXM2-16GB"),
    Use(("windtunnel", "explain", "skill"), r"^name: windtunnel$"),
    Use(("windtunnel", "explain", "plan"), r"^# Plans"),
    Use(("windtunnel", "smi", "--gpus", "H100", "-L"), r"^GPU 0: NVIDIA H100"),
    Use(("windtunnel", "experiment", "matmul"), r"^windtunnel: PyTorch is not installed: pip install \S+$", 2),
    Use(("windtunnel", "run", "first.py"), r"^windtunnel: PyTorch is not installed: pip install \S+$", 2),
)
DEMO = r"(?s)use 2 GPUs.*lines \.\.\..*verdict EMULATED on 2.*loss-broadcast \(housing_data_parallel\.py:\d+\)"
WITH_TORCH = (
    Use(("python", "-m", "windtunnel.demo", "--epochs", "2"), DEMO),
    Use(("windtunnel", "experiment", "matmul", "--gpus", "V100", "--small"), r"modelled"),
    Use(("python", "-m", "windtunnel.examples"), r"wrote \d+ files to examples"),
    Use(("windtunnel", "run", "--gpus", "T4", "examples/shapes_cnn.py", "--epochs", "1"), r"verdict EMULATED on"),
    Use(("pytest", "-q", "-p", "no:cacheprovider", "test_copy.py"), r"1 passed"),
    Use(("windtunnel", "doctor"), r"PyTorch: +\d"),
)  # fmt: skip


@contextmanager
def timed(words: str) -> Iterator[None]:
    """Print what was done and how long it took."""
    begun = time.monotonic()
    yield
    print(f"{time.monotonic() - begun:5.1f} s  {words}", flush=True)


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist and the wheel that is built from it, both in a folder; also what they must hold."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, stdout=subprocess.DEVNULL)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    require_files(sdist, IN_SDIST, names)
    with zipfile.ZipFile(wheel) as archive:
        require_files(wheel, IN_WHEEL, set(archive.namelist()))
    return sdist, wheel


def require_files(path: Path, wanted: tuple[str, ...], present: set[str]) -> None:
    missing = [name for name in wanted if name not in present]
    if missing:
        raise SystemExit(f"{path.name} lacks {', '.join(missing)}")


class Environment:
    """A virtual environment with nothing in it but what is installed here, and an empty folder to work in."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "environment" / "bin"
        self.work = folder / "work"
        self.work.mkdir()
        subprocess.run([sys.executable, "-m", "venv", folder / "environment"], check=True)
        self.variables = {
            name: value for name, value in os.environ.items() if not name.startswith(("WINDTUNNEL_", "PYTHON"))
        }
        self.variables |= {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        (self.work / "first.py").write_text("import torch\n", encoding="utf-8")
        (self.work / "test_copy.py").write_text(TEST, encoding="utf-8")

    def install(self, *wanted: str) -> None:
        """Install by pip, at the versions that the project is tested with."""
        options = ["--quiet", "--disable-pip-version-check", "--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([self.bin / "python", "-m", "pip", "install", *options, *wanted], check=True, cwd=self.work)

    def check(self, use: Use) -> None:
        """Run a command; leave with its output where it is not what it should be."""
        with timed(" ".join(use.words)):
            words = [str(self.bin / use.words[0]), *use.words[1:]]
            done = subprocess.run(
                words, cwd=self.work, env=self.variables, capture_output=True, text=True, timeout=300, check=False
            )
        printed = done.stdout + done.stderr
        if done.returncode != use.code or not re.search(use.output, printed, re.MULTILINE):
            raise SystemExit(f"{' '.join(use.words)} ended with {done.returncode} and printed\n{printed}")


def main() -> None:
    """Build, install, use."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--build-only", action="store_true", help="leave the two files in dist/ and use neither")
    build_only = parser.parse_args().build_only
    for old in DIST.glob("windtunnel-*"):
        old.unlink()
    with timed("build"):
        sdist, wheel = build(DIST)
    print(f"         {sdist.relative_to(ROOT)}, {wheel.relative_to(ROOT)}")
    if build_only:
        return
    with tempfile.TemporaryDirectory(prefix="windtunnel-dist-") as name:
        environment = Environment(Path(name))
        with timed(f"pip install {wheel.name}"):
            environment.install(str(wheel), "pytest")
        for use in WITHOUT_TORCH:
            environment.check(use)
        with timed(f"pip install {wheel.name}[torch]"):
            environment.install(f"{wheel}[torch]")
        for use in WITH_TORCH:
            environment.check(use)
    uses = len(WITHOUT_TORCH) + len(WITH_TORCH)
    print(f"{uses} passed, 0 failed")


if __name__ == "__main__":
    main()
