"""The table of versions in docs/reliability.md, from runs: `make versions ARGS="PYTHON..."`.

    python -m tools.docs.versions .venv/bin/python .venv-jax/bin/python    # then `make pages`

Each Python is one of an environment with pytest and a framework. It runs a part of the tests of each framework that it
has on this checkout; which versions it has and how many tests passed is a row of docs/figures/versions.json.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tools import ROOT
from tools.docs.figures import record

TESTS = {
    "torch": (
        "tests/architecture/test_hooks.py",
        "tests/seam/test_streams.py",
        "tests/seam/test_graphs.py",
        "tests/seam/test_random.py",
        "tests/ranks/test_stores.py",
        "tests/seam/test_comm_hooks.py",
    ),
    "triton": ("tests/on_triton/test_tutorial_kernels.py",),
    "jax": ("tests/on_jax/test_seam.py", "tests/on_jax/test_jax_exchange.py", "tests/on_jax/test_vocabulary.py"),
    "tensorflow": (
        "tests/on_tensorflow/test_seam.py",
        "tests/on_tensorflow/test_tensorflow_exchange.py",
        "tests/on_tensorflow/test_vocabulary.py",
    ),
}
"""By package. Of PyTorch the private names needed, order, graphs, how ranks meet and DDP on NCCL: what breaks first."""
ASKED = """
import platform
from importlib.metadata import PackageNotFoundError, version
def of(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
    return "none"
frameworks = of("torch"), of("triton"), of("jax"), of("tensorflow", "tensorflow-cpu")
print(*frameworks, platform.python_version(), of("numpy"))
"""
COLUMNS = ("torch", "triton", "jax", "tensorflow", "python", "numpy")
OLDEST_TRITON = (3, 7)
"""Of those that are emulated (pyproject.toml); PyTorch brings older ones along."""


def tests_of(versions: dict[str, str]) -> list[str]:
    """The tests that an environment runs."""
    triton = re.match(r"(\d+)\.(\d+)", versions["triton"])
    old = triton is not None and (int(triton[1]), int(triton[2])) < OLDEST_TRITON
    found = [name for name in TESTS if versions[name] != "none" and not (name == "triton" and old)]
    return [test for name in found for test in TESTS[name]]


def main(pythons: list[str]) -> int:
    """Run the tests on each Python, and write the rows; 1 where a test failed."""
    failed = 0
    for python in pythons:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        asked = subprocess.run([python, "-c", ASKED], env=environment, capture_output=True, text=True, check=True)
        versions = dict(zip(COLUMNS, asked.stdout.split(), strict=True))
        command = [python, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += [*tests_of(versions), "-m", "not long and not weekly"]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        counts = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|errors?)\b", done.stdout)}
        passed = counts.pop("passed", 0)
        print(done.stdout[-2000:] if done.returncode else f"{python}: {passed} passed", flush=True)
        failed |= done.returncode
        key = "-".join(f"{name}-{number}" for name, number in versions.items() if number != "none" and name != "numpy")
        record("versions", {key: {**versions, "result": passed, "failed": sum(counts.values())}})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
