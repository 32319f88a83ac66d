"""The table of versions in docs/reliability.md, from runs: `make versions ARGS="PYTHON..."`.

    python -m tools.docs.versions .venv/bin/python .venv-torch-2.6.0/bin/python    # then `make pages`

Each Python is one of an environment with torch and pytest. It runs a part of the tests on this checkout; which versions
it has and how many tests passed is a row of docs/figures/versions.json.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tools import ROOT
from tools.docs.figures import record

TESTS = (
    "tests/architecture/test_hooks.py",
    "tests/seam/test_streams.py",
    "tests/seam/test_graphs.py",
    "tests/seam/test_random.py",
    "tests/ranks/test_stores.py",
)
"""The private names that are needed, order, graphs and how ranks meet: what another version breaks first."""
ASKED = """
import platform, sys
from importlib.metadata import PackageNotFoundError, version
def of(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
print(platform.python_version(), *map(of, ("torch", "numpy", "triton")))
"""


def main(pythons: list[str]) -> int:
    """Run the tests on each Python, and write the rows; 1 where a test failed."""
    failed = 0
    for python in pythons:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        asked = subprocess.run([python, "-c", ASKED], env=environment, capture_output=True, text=True, check=True)
        own, torch, numpy, triton = asked.stdout.split()
        command = [python, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *TESTS]
        done = subprocess.run([*command, "-m", "not long"], env=environment, cwd=ROOT, capture_output=True, text=True)
        counts = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|errors?)\b", done.stdout)}
        wrong = sum(counts.values()) - counts.get("passed", 0)
        print(done.stdout[-2000:] if done.returncode else f"{python}: {counts['passed']} passed", flush=True)
        failed |= done.returncode
        row = {"torch": torch, "python": own, "numpy": numpy, "triton": triton, "result": counts.get("passed", 0)}
        record("versions", {f"{torch.partition('+')[0]}-{own}": {**row, "failed": wrong}})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
