"""A call into an installed library: findings name the place in the library, and tell one place from another."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import windtunnel
from windtunnel.trace.finding import Finding

LIBRARY = """
import torch

def save(weights):
    for _ in range(2):
        for weight in weights:
            weight.cpu()
        weights[0].add_(1)

def train(weights, steps):
    for _ in range(steps):
        weights[0].mul_(2)
        weights[0].sum().item()
    save(weights)

def prepare(weight):
    with torch.cuda.stream(torch.cuda.Stream()):
        weight.add_(1)
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "steps_library.py").write_text(LIBRARY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("steps_library")
    del sys.modules["steps_library"]


def by_place(findings: list[Finding]) -> dict[str, tuple[str, str, int]]:
    """Code, severity and number by the place in the library."""
    return {str(one.other): (one.code, one.severity, one.times) for one in findings if one.other.file}


def test_waits_at_two_places_of_a_library_are_two_findings(library: ModuleType) -> None:
    with windtunnel.emulate("V100") as session:
        library.train([torch.ones(64, device="cuda") for _ in range(20)], 30)
        found = by_place(session.findings())
    assert found == {
        "steps_library.py:13": ("host-sync", "warning", 30),
        "steps_library.py:7": ("host-sync", "info", 40),
    }


def test_the_place_is_in_the_message(library: ModuleType) -> None:
    with windtunnel.emulate("V100") as session:
        library.train([torch.ones(64, device="cuda")], 30)
        messages = [one.message for one in session.findings()]
    assert any("(`.item()`, `float()`, `if`) in steps_library.py:13 blocked the host 30 times" in m for m in messages)


def test_a_stream_of_a_librarys_own_is_no_error_of_the_program(library: ModuleType) -> None:
    with windtunnel.emulate("V100") as session:
        weight = torch.ones(64, device="cuda")
        library.prepare(weight)
        weight.sum()
        found = [one for one in session.findings() if one.code == "unsynchronized-access"]
    assert {one.severity for one in found} == {"info"}
    assert "steps_library.py:17 made that stream" in found[0].message


def test_a_stream_of_the_programs_own_is_one() -> None:
    with windtunnel.emulate("V100") as session:
        weight = torch.ones(64, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            weight.add_(1)
        weight.sum()
        found = [one for one in session.findings() if one.code == "unsynchronized-access"]
    assert {one.severity for one in found} == {"error"}
