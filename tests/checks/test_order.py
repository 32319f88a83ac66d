"""Checks that read hazards: one incident, one finding."""

from __future__ import annotations

import pytest
from traces import Lane

from windtunnel import checks

HOST = Lane(-1, 0)
DEFAULT = Lane(0, 0)
SIDE = Lane(0, 1)


def lines(program):
    return [(f.code, f.other.line, f.site.line, f.times) for f in checks.run(program.trace)]


@pytest.mark.parametrize("code", ["unsynchronized-access", "freed-in-use", "stale-read", "early-overwrite"])
def test_each_code_is_an_error_at_the_later_line(program, code):
    program.hazard(code, 5, 7)
    (finding,) = checks.run(program.trace)
    assert (finding.code, finding.severity, finding.site.line, finding.other.line) == (code, "error", 7, 5)
    assert finding.allocated.line == 1
    assert "train.py:5" in finding.message
    assert finding.advice


def test_a_loop_is_one_incident(program):
    for _ in range(100):
        program.hazard("unsynchronized-access", 5, 7)
    assert lines(program) == [("unsynchronized-access", 5, 7, 100)]


def test_several_reads_after_one_missing_wait_are_one_incident(program):
    program.hazard("unsynchronized-access", 5, 7).hazard("unsynchronized-access", 5, 8)
    program.hazard("unsynchronized-access", 6, 8)
    assert lines(program) == [("unsynchronized-access", 5, 7, 3)]


def test_the_way_back_is_another_incident(program):
    program.hazard("unsynchronized-access", 5, 7)
    program.hazard("unsynchronized-access", 7, 5, lanes=(SIDE, DEFAULT), accesses=("read", "write"))
    assert sorted(lines(program)) == [("unsynchronized-access", 5, 7, 1), ("unsynchronized-access", 7, 5, 1)]


def test_unrelated_lines_are_two_incidents(program):
    program.hazard("unsynchronized-access", 5, 7).hazard("unsynchronized-access", 15, 17)
    assert len(lines(program)) == 2


def test_reuse_of_freed_memory_is_not_also_an_unsynchronized_access(program):
    program.hazard("freed-in-use", 5, 9).hazard("unsynchronized-access", 5, 9)
    assert [code for code, *_ in lines(program)] == ["freed-in-use"]


def test_messages_name_who_met_whom(program):
    program.hazard("unsynchronized-access", 5, 7)
    program.hazard("unsynchronized-access", 15, 17, lanes=(DEFAULT, HOST))
    messages = {finding.site.line: finding.message for finding in checks.run(program.trace)}
    assert messages[7].startswith("stream 1 of cuda:0 reads memory that the default stream of cuda:0 wrote")
    assert messages[17].startswith("the host reads")


def test_findings_between_ranks_come_before_what_follows_from_them(program):
    program.hazard("freed-in-use", 5, 7)
    program.note("collective-mismatch", 9, what="dtype", group="the default group", number=1)
    assert [finding.code for finding in checks.run(program.trace)] == ["collective-mismatch", "freed-in-use"]


def test_what_ended_a_rank_comes_before_that_it_ended(program):
    program.note(
        "rank-ended", 9, rank=1, group="g", number=1, calls=0, kind="collective", last="", how="killed", text=""
    )
    program.note("device-assert", 11, operator="aten::index")
    assert [finding.code for finding in checks.run(program.trace)] == ["device-assert", "rank-ended"]
