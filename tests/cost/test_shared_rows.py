"""Rows that users share: what they hold, what is refused, and how the exam judges them."""

from __future__ import annotations

import json

import pytest
from tools.exam import rows

from windtunnel.analysis import shared_rows
from windtunnel.analysis.shared_rows import Predicted, SharedRow
from windtunnel.errors import FileFormatError

MADE = SharedRow(
    shared_rows.FORMAT,
    shared_rows.program_of(b"print(1)"),
    "H100-SXM5-80GB",
    1,
    "580.159.04",
    "12.8",
    {"torch": "2.9.0"},
    "AMD EPYC",
    False,
    shared_rows.measured([9_000_000, 2_000_000, 2_200_000, 1_900_000], 20_000_000),
    Predicted(1.8, (1.6, 2.1)),
)


def test_the_first_step_is_left_out_and_a_run_without_steps_is_its_length():
    assert MADE.measured == shared_rows.Measured(3, 2.0, 1.9, 2.2)
    assert shared_rows.measured([], 5_000_000) == shared_rows.Measured(0, 5.0, 5.0, 5.0)


def test_a_row_is_read_as_it_was_written_and_judged(tmp_path):
    shared_rows.write(MADE, tmp_path / "row.json")
    assert shared_rows.load(tmp_path / "row.json") == MADE
    (one,) = rows.outcomes("H100", tmp_path)
    assert (one.predicted, one.published) == (1.8, 2.0)
    assert one.inside
    assert one.group.startswith("H100-SXM5-80GB shared")
    assert not list(rows.outcomes("A100", tmp_path))


def test_half_of_all_programs_only_judge():
    held = [SharedRow(*([1, shared_rows.program_of(bytes([n]))] + [None] * 9)).is_held_back for n in range(64)]
    assert 16 < sum(held) < 48


def test_what_is_no_row_is_refused(tmp_path):
    file = tmp_path / "row.json"
    file.write_text(json.dumps({"format": 1, "path": "/home/someone"}))
    with pytest.raises(FileFormatError, match="is not a row that `windtunnel verify --share` wrote"):
        shared_rows.load(file)


def test_a_row_of_a_stand_in_says_nothing_of_the_clock(tmp_path):
    made = SharedRow(*(getattr(MADE, name) for name in MADE.__struct_fields__))
    made.stand_in = True
    shared_rows.write(made, tmp_path / "row.json")
    with pytest.raises(SystemExit, match="emulated GPU in the place of a real one"):
        list(rows.outcomes("", tmp_path))
