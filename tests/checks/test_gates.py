"""Gates count findings of a code, or of a severity and those that are worse."""

from __future__ import annotations

import pytest

from windtunnel.checks._gates import parse_gates, violations
from windtunnel.trace.finding import Finding
from windtunnel.trace.operation import Site

FOUND = [
    Finding("unsynchronized-access", "error", "", "", Site("a.py", 1)),
    Finding("host-sync", "warning", "", "", Site("a.py", 2), times=2),
    Finding("small-copies", "info", "", "", Site("a.py", 3), times=4),
]


@pytest.mark.parametrize(
    ("gate", "found"),
    [("error", 1), ("warning", 3), ("info", 7), ("host-sync", 2), ("unsynchronized-access", 1), ("out-of-memory", 0)],
)
def test_a_gate_lets_no_more_through_than_it_says(gate: str, found: int) -> None:
    assert violations(parse_gates([f"{gate}={found}"]), FOUND) == []
    if found:
        (sentence,) = violations(parse_gates([f"{gate}={found - 1}"]), FOUND)
        assert sentence.startswith(f"failed on {gate}: {found} found, {found - 1} allowed (a.py:")


def test_an_error_is_no_less_than_a_warning() -> None:
    assert violations(parse_gates(["warning"]), FOUND[:1]) == ["failed on warning: 1 found, 0 allowed (a.py:1)"]
