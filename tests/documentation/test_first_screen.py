"""The first screen of README.md, typed in a fresh clone on a machine that has Python 3.11, make and nothing else."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCREEN = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## What do you want to do?")[0]
DEVELOPERS, USERS = (block.splitlines() for block in re.findall(r"```console\n(.*?)```", SCREEN, re.DOTALL))
PRINTED = {
    "make demo": r"verdict EMULATED on 2",
    "make test": r"\d+ passed",
    "windtunnel doctor": r"PyTorch: +\d",
}
PLAN = "windtunnel plan "

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git would give somebody who clones this checkout, with what is not yet committed."""
    folder = tmp_path_factory.mktemp("clone") / "windtunnel"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.splitlines():
        source, target = ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            target.chmod(source.stat().st_mode)
    return folder


def typed(line: str, clone: Path, **more: str) -> None:
    """Type a line in the clone, with nothing of this environment's; it must end well and print what it should."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WINDTUNNEL_", "PYTHON", "MAKE"))}
    done = subprocess.run(
        line, shell=True, cwd=clone, env={**kept, "OMP_NUM_THREADS": "1", **more},
        capture_output=True, text=True, errors="replace", timeout=600, check=False,  # threads print side by side
    )  # fmt: skip
    printed = done.stdout + done.stderr
    assert done.returncode == 0, f"{line}\n{printed}"
    assert re.search(PRINTED.get(line, ""), printed, re.MULTILINE), f"{line}\n{printed}"


@pytest.mark.weekly
def test_the_lines_for_developers(clone: Path) -> None:
    assert DEVELOPERS == ["make demo", "make test"]
    # The suite itself is what this test belongs to: a part of it shows that the target works.
    for line in DEVELOPERS:
        typed(line, clone, PYTHON=sys.executable, ARGS="tests/trace" if line == "make test" else "--epochs 2")
    assert (clone / "runs" / "demo.html").stat().st_size > 10_000


# `make dist` installs PyTorch from the index in an empty environment; that takes longer than all lines here.
@pytest.mark.parametrize("lies_there", [True, pytest.param(False, marks=pytest.mark.weekly)])
def test_the_lines_for_programs_of_one_s_own(clone: Path, lies_there: bool) -> None:
    """It is installed beside PyTorch, as the README says, or into an environment with nothing in it."""
    bare = clone.parent / f"bare-{lies_there}"
    subprocess.run([sys.executable, "-m", "venv", bare], check=True)
    if lies_there:
        there = packages_of(bare) / "there.pth"
        there.write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    more = {"PATH": f"{bare / 'bin'}{os.pathsep}{os.environ['PATH']}", "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    assert USERS[0] == 'pip install ".[torch]"'
    for line in USERS:
        # A plan takes minutes; its options are tried by test_readme.py, and here one GPU and no search stand for it.
        short = line.partition(" --gpus")[0] + " --gpus A100" if line.startswith(PLAN) else line
        typed(short, clone, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_COMPILE="0", **more)
    assert (packages_of(bare) / "windtunnel" / "__init__.py").exists()


def packages_of(environment: Path) -> Path:
    """Where an environment has its packages."""
    (found,) = (environment / "lib").glob("python*/site-packages")
    return found
