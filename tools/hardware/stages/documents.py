"""The documents' statements and listings: their tests, on the GPUs that there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tools import ROOT
from tools.hardware.context import Context, Items, Row, both, failed, shown

ORDER = 10
TITLE = "The documents' statements and listings"
LIMIT_S = 600
ITEM_S = 300
OPTIONS: tuple[str, ...] = ()
PROCESSES = 6  # a file's tests may break CUDA so often


def items(context: Context) -> Items:
    """A file of tests each."""
    files = [
        *sorted((ROOT / "tests" / "mission").glob("test_items_*.py")),
        ROOT / "tests/programs/test_mission_programs.py",
    ]
    chosen = [file for file in files if file.stem == "test_items_inspection"] if context.short else files
    return {file.stem: partial(tests, file, context) for file in chosen}


def tests(file: Path, context: Context) -> dict[str, list[str]]:
    """Each test's outcome, and why where it did not pass."""
    if find_spec("pytest") is None:
        return {"error": "pytest is not installed"}  # type: ignore[dict-item]
    with tempfile.TemporaryDirectory(prefix="hardware-") as folder:
        results = Path(folder, "results")
        results.touch()
        for _ in range(PROCESSES):
            done = [json.loads(line) for line in results.read_text("utf-8").splitlines()]
            code = _pytest(file, [line["test"] for line in done], results, context)
            if code in (0, 1, 5):
                break
        lines = [json.loads(line) for line in results.read_text("utf-8").splitlines()]
    if not lines:
        return {"error": f"pytest ended with {code}"}  # type: ignore[dict-item]
    return {line["test"].partition("::")[2]: [line["outcome"], line["why"]] for line in lines}


def _pytest(file: Path, done: list[str], results: Path, context: Context) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tools.hardware.documents_plugin"]
    try:
        distribution("windtunnel")  # brings its plugin
    except PackageNotFoundError:
        command += ["-p", "windtunnel.pytest_plugin"]
    command += ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    for test in done:
        command += ["--deselect", test]
    extra = {
        "HARDWARE_GPUS": str(context.gpus),
        "HARDWARE_MODEL": "" if context.real else context.model,
        "HARDWARE_RESULTS": str(results),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    variables = {**without_emulation(os.environ), **extra}
    return subprocess.run([*command, str(file)], cwd=ROOT, env=variables, check=False, timeout=ITEM_S).returncode


def without_emulation(variables: Any) -> dict[str, str]:
    """Variables in which no emulation of an outer `windtunnel run` is left: these tests begin their own."""
    shim = os.sep + os.path.join("windtunnel", "shim") + os.sep
    kept = {name: value for name, value in variables.items() if not name.startswith("WINDTUNNEL_")}
    for name in ("PATH", "PYTHONPATH"):
        kept[name] = os.pathsep.join(p for p in kept.get(name, "").split(os.pathsep) if p and shim not in p + os.sep)
    return kept


def rows(native: dict[str, Any], emulated: dict[str, Any]) -> list[Row]:
    """Tests that pass on one side only; how many were run; those that were not run are counted."""
    found = []
    for file, real, ours in both(native, emulated):
        if failed(real) or failed(ours):
            found.append(Row(file, shown(real), shown(ours), failed(real) != failed(ours)))
            continue
        outcomes = [outcome for outcome, _ in real.values()]
        not_run = outcomes.count("skipped")
        alike = 0
        for test, (outcome, why) in real.items():
            other, other_why = ours.get(test, ["missing", ""])
            if outcome == "failed" and other == "failed":
                alike += 1  # needs another card or more of them
            elif outcome == "failed" or (other == "failed" and outcome == "passed"):
                found.append(Row(f"{file}::{test}", f"{outcome} {why}"[:60], f"{other} {other_why}"[:60], True))
        told = f"{outcomes.count('passed')} passed, {not_run} not run"
        found.append(Row(file, told, f"{alike} fail on both sides: for another card, or more of them", False))
    return found
