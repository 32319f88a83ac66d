"""CUDA C++ by nvcc: bits of the device's functions, and what the runtime says of wrong launches and kernels."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tools.hardware.context import Context, Items, Row, answered, shown

ORDER = 47
TITLE = "CUDA C++: functions and errors"
LIMIT_S = 180
ITEM_S = 150
OPTIONS: tuple[str, ...] = ()
SOURCES = Path(__file__).parents[1] / "cuda"
MODES = 31


def items(context: Context) -> Items:
    """The two programs; they run natively alone."""
    return {"functions": partial(functions, context), "errors": partial(errors, context)}


def functions(context: Context) -> dict[str, str]:
    """The results by function, as hexadecimal digits of 32 bits."""
    text = subprocess.run([_built("functions", context)], capture_output=True, text=True, check=True).stdout
    return dict(line.rsplit(" ", 1) for line in text.splitlines())


def errors(context: Context) -> dict[str, list[str]]:
    """What each mode of the program prints."""
    program = _built("errors", context)
    found = {}
    for mode in range(MODES):
        done = subprocess.run([program, str(mode)], capture_output=True, text=True, check=False, timeout=30)
        lines = done.stdout.splitlines() + [f"stderr: {line}" for line in done.stderr.splitlines()]
        found[str(mode)] = [*lines, f"exit {done.returncode}"]
    return found


def _built(name: str, context: Context) -> str:
    if not context.real:
        raise RuntimeError("CUDA C++ programs run on real GPUs alone")
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).exists():
        raise RuntimeError("there is no nvcc here")
    folder = tempfile.mkdtemp(prefix="hardware-")
    subprocess.run(
        [nvcc, "-O2", "-std=c++17", "-arch=native", "-o", f"{folder}/{name}", str(SOURCES / f"{name}.cu")],
        check=True,
        capture_output=True,
    )
    return f"{folder}/{name}"


def rows(native: dict[str, Any], emulated: dict[str, Any]) -> list[Row]:
    """What differs."""
    found: list[Row] = []
    for item, real, ours in answered(native, emulated, found):
        found += [
            Row(f"{item}, {name}", shown(real[name]), shown(ours.get(name, "-")), True)
            for name in real
            if real[name] != ours.get(name)
        ]
    return found
