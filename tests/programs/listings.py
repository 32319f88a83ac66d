"""Run a framework's listings of the mission's documents and compare what they print; shared by tests/<framework>."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NUMBER = re.compile(r"-?\d+\.\d*(?:e[-+]?\d+)?")
RANDOM = r"-?\d+\.\d*(?:e[-+]?\d+)?"


def names(framework):
    """The listings of a framework."""
    return sorted(path.stem for path in (HERE / "mission" / framework).glob("*.py") if "." not in path.stem)


def path(framework, name):
    """The path of a listing."""
    return HERE / "mission" / framework / f"{name}.py"


def run(folder, framework, name, *options, emulated=True, **environment):
    """What a listing printed (stdout, stderr), on two emulated V100 or on the CPU."""
    command = [sys.executable, str(HERE / "notebook.py"), str(path(framework, name))]
    if emulated:
        command[1:1] = ["-m", "windtunnel", "run", "-q", "--gpus", "2xV100", *options]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def lines(text):
    """The lines of a text without indentation, with single spaces."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def differences(framework, name, stdout):
    """Pairs of lines (expected, printed) that differ; decimals may differ in the last place that float32 has."""
    expected = lines(path(framework, name).with_suffix(".expected").read_text(encoding="utf-8"))
    printed = lines(stdout)
    pairs = [
        (expected[i] if i < len(expected) else None, printed[i] if i < len(printed) else None)
        for i in range(max(len(expected), len(printed)))
    ]
    return [pair for pair in pairs if None in pair or not _same(*pair)]


def _same(expected, line):
    if "{" in expected and ("{number}" in expected or "{address}" in expected):
        pattern = re.escape(expected).replace(r"\{number\}", RANDOM + " ?").replace(r"\{address\}", "0x[0-9a-f]+")
        return re.fullmatch(pattern, line) is not None
    if NUMBER.sub("#", expected) != NUMBER.sub("#", line):
        return False
    wanted, got = (map(float, NUMBER.findall(text)) for text in (expected, line))
    return all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-7) for a, b in zip(wanted, got, strict=True))
