"""Faults of kernels that were reported in public, written anew: each is found at its line, its mended twin is clean.

A file in `reported/` names the report, says how both kernels are launched, and where the faulty one's fault is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from windtunnel import gpus
from windtunnel.single_kernel import run

REPORTED = sorted((Path(__file__).parent / "reported").glob("*.cu"))


@pytest.mark.parametrize("file", REPORTED, ids=lambda file: file.stem)
def test_a_reported_fault_is_found_and_its_mended_twin_is_clean(file: Path) -> None:
    lines = file.read_text().split("\n")
    ((line, kind),) = [(n, m[1]) for n, text in enumerate(lines, 1) if (m := re.search(r"// fault: (\S+)", text))]
    launch = lines[1].removeprefix("// ")
    faulty = run(file, f"faulty{launch}", gpus.find("H100"))
    assert (kind, line) in {(fault["kind"], fault["line"]) for fault in faulty.faults}
    right = run(file, f"right{launch}", gpus.find("H100"), seed=3)
    assert (right.faults, right.error, right.refused) == ((), "", "")
