"""Traces made by hand, as the checks' tests make them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "checks"))

from traces import DTOH, HTOD, Program


@pytest.fixture
def program() -> Program:
    """An empty program on two GPUs."""
    return Program(gpus=2)


@pytest.fixture
def training(program: Program) -> Program:
    """Ten steps on one of two GPUs: a copy in, kernels, a wait, with totals as a session writes them."""
    for number in range(10):
        program.copy(HTOD, 1 << 20, line=10)
        for _ in range(8):
            program.kernel("aten::addmm", ns=30_000, line=12, shapes=((128, 64),), dtypes=("float32",))
        program.item(line=15).step(number, line=14)
    program.copy(DTOH, 4096, line=20)
    program.trace.facts["devices"] = [
        {"memory_bytes": 16 << 30, "peak_allocated_bytes": 3 << 20, "peak_reserved_bytes": 4 << 20},
        {"memory_bytes": 16 << 30, "peak_allocated_bytes": 0, "peak_reserved_bytes": 0},
    ]
    return program
