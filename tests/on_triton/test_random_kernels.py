"""A few of the random kernels of `make differential-kernels`, and what it would say of a wrong sanitizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.differential import kernels as differential


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_no_fault_is_missed_and_none_is_made_up(first: int, tmp_path: Path) -> None:
    told = {seed: differential.judge(seed, tmp_path) for seed in range(first, first + 30)}
    assert {seed: found for seed, found in told.items() if found} == {}


def test_kernels_repeat_and_have_each_fault_in_each_way() -> None:
    assert differential.made(3) == differential.made(3)
    cases = [differential.made(seed) for seed in range(400)]
    assert {case.fault for case in cases if case.fault} == set(differential.FAULTS)
    assert {(case.way, bool(case.fault)) for case in cases} == {
        (way, faulty) for way in differential.WAYS for faulty in (False, True)
    }


def test_a_fault_that_nobody_reports_is_missed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seed = next(seed for seed in range(100) if differential.made(seed).fault == "nothing written")
    _, line = differential.source(differential.made(seed))
    monkeypatch.setattr(differential, "found", lambda case, folder: ({("device-assert", 3, "")}, ""))
    assert differential.judge(seed, tmp_path) == [
        f"missed ('triton-uninitialized', {line}, 'b_ptr')", "false ('device-assert', 3, '')"
    ]  # fmt: skip
