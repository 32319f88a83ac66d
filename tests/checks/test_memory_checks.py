"""Checks on memory: full, in pieces, growing, not enough."""

from __future__ import annotations

import pytest

from windtunnel import checks

GIB = 1 << 30


def totals(program, allocated, reserved, total=16 * GIB):
    program.trace.facts["devices"] = [
        {
            "memory_bytes": total,
            "peak_allocated_bytes": allocated,
            "peak_reserved_bytes": reserved,
            "context_bytes": GIB // 2,
        }
    ]


def test_a_peak_near_the_limit_names_who_held_it(program):
    totals(program, 15 * GIB, 15 * GIB)
    program.memory("alloc", 1, 10 * GIB, line=5).memory("alloc", 2, 5 * GIB, line=6)
    program.memory("free_completed", 1, 10 * GIB, line=5)
    (finding,) = checks.run(program.trace)
    assert (finding.code, finding.site.line, finding.device) == ("near-full-memory", 5, 0)
    assert "train.py:5 (10.0 GiB), train.py:6 (5.00 GiB)" in finding.message


def test_memory_that_is_reserved_and_not_in_use(program):
    totals(program, 8 * GIB, 14 * GIB)
    (finding,) = checks.run(program.trace)
    assert finding.code == "fragmentation"
    assert "expandable_segments" not in finding.advice
    assert "`--memory-history` the allocations are replayed" in finding.advice


def test_a_replay_names_the_setting_that_helps_most(program):
    totals(program, 8 * GIB, 14 * GIB)
    program.trace.facts["replays"] = [
        replay("", 14),
        replay("max_split_size_mb:128", 12),
        replay("roundup_power2_divisions:8", 9),
        replay("max_split_size_mb:512", 8, out_of_memory=1),
        replay("expandable_segments:True", 1, device=1),
    ]
    (finding,) = checks.run(program.trace)
    assert "roundup_power2_divisions:8" in finding.advice
    assert "9.00 GiB instead of 14.0 GiB" in finding.advice
    assert (finding.saved_of, finding.saved_share) == ("reserved memory", pytest.approx(5 / 14))


def test_where_no_setting_helps_it_says_so(program):
    totals(program, 8 * GIB, 14 * GIB)
    program.trace.facts["replays"] = [replay("", 14), replay("expandable_segments:True", 14)]
    (finding,) = checks.run(program.trace)
    assert finding.advice.startswith("no allocator setting helps")
    assert finding.saved_share is None


def replay(setting: str, gib: int, device: int = 0, out_of_memory: int = 0):
    size = gib * GIB
    return {"device": device, "setting": setting, "peak_reserved_bytes": size, "out_of_memory": out_of_memory}


def test_ordinary_use_is_silent(program):
    totals(program, 8 * GIB, 9 * GIB)
    assert checks.run(program.trace) == []


def step(program, number, kept_bytes, line=5):
    program.now_ns += 1_000_000
    program.memory("alloc", 10_000 + number, 1 << 20, line=4).memory("free_completed", 10_000 + number, 1 << 20, line=4)
    if kept_bytes:
        program.memory("alloc", 20_000 + number, kept_bytes, line=line)
    program.step(number)


def test_memory_that_every_step_leaves_behind(program):
    program.memory("alloc", 1, 1 << 20, line=2)
    for number in range(12):
        step(program, number, 64 << 10)
    (finding,) = checks.run(program.trace)
    assert (finding.code, finding.site.line, finding.times) == ("growing-memory", 5, 9)
    assert "64.0 KiB" in finding.message
    assert finding.size_bytes == 9 * (64 << 10)
    assert finding.saved_share is None  # nothing says how much was in use at the peak


def test_growth_promises_what_earlier_steps_left_at_the_peak(program):
    totals(program, 2 << 20, 4 << 20)
    for number in range(12):
        step(program, number, 64 << 10)
    (finding,) = checks.run(program.trace)
    assert finding.message.endswith("fixing this would save about 34 % of the peak")
    assert (finding.saved_of, finding.saved_share) == ("peak", pytest.approx(11 * (64 << 10) / (2 << 20)))


def test_a_log_of_losses_may_grow(program):
    for number in range(12):
        step(program, number, 512)
    assert checks.run(program.trace) == []


def test_memory_that_stops_growing(program):
    for number in range(12):
        step(program, number, 64 << 10 if number < 5 else 0)
    assert checks.run(program.trace) == []


def test_out_of_memory_says_what_was_alive(program):
    program.memory("alloc", 1, 10 * GIB, line=5).memory("alloc", 2, 5 * GIB, line=6).memory("oom", 0, 4 * GIB, line=7)
    program.memory("free_completed", 1, 10 * GIB, line=5)
    program.note(
        "out-of-memory",
        7,
        device=0,
        requested_bytes=4 * GIB,
        free_bytes=GIB,
        memory_bytes=16 * GIB,
        allocated_bytes=15 * GIB,
        reserved_bytes=15 * GIB,
    )
    (finding,) = checks.run(program.trace)
    assert (finding.code, finding.severity, finding.site.line) == ("out-of-memory", "error", 7)
    assert finding.message == (
        "tried to allocate 4.00 GiB on cuda:0; 1.00 GiB of 16.0 GiB were free, 15.0 GiB in use; "
        "most of it held by train.py:5 (10.0 GiB), train.py:6 (5.00 GiB)"
    )


def test_each_failure_names_what_was_alive_at_it(program):
    for line in (7, 9):  # a program that halves its batch and goes on
        program.note("out-of-memory", line, device=0, requested_bytes=8 * GIB, free_bytes=GIB, memory_bytes=16 * GIB)
    program.memory("alloc", 1, 10 * GIB, line=5).memory("oom", 0, 8 * GIB, line=7)
    program.memory("free_completed", 1, 10 * GIB, line=5).memory("alloc", 2, 9 * GIB, line=6)
    program.memory("oom", 0, 8 * GIB, line=9)
    first, second = (finding.message for finding in checks.run(program.trace))
    assert first.endswith("most of it held by train.py:5 (10.0 GiB)")
    assert second.endswith("most of it held by train.py:6 (9.00 GiB)")


def test_out_of_memory_within_a_fraction_says_so(program):
    program.note("out-of-memory", 7, device=0, requested_bytes=2 * GIB, free_bytes=15 * GIB, memory_bytes=GIB)
    (finding,) = checks.run(program.trace)
    assert finding.message == "tried to allocate 2.00 GiB on cuda:0; the process may use at most 1.00 GiB"


def test_out_of_memory_in_pieces_names_a_setting_only_after_a_replay(program):
    program.note(
        "out-of-memory", 7, device=0, requested_bytes=2 * GIB, allocated_bytes=10 * GIB, reserved_bytes=14 * GIB
    )
    (finding,) = checks.run(program.trace)
    assert "expandable_segments" not in finding.advice
    assert "`--memory-history` says which modules held it, and by replay what each setting" in finding.advice
    program.trace.facts["replays"] = [replay("", 14, out_of_memory=1), replay("expandable_segments:True", 12)]
    (finding,) = checks.run(program.trace)
    assert "with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True the same allocations fit" in finding.advice


def test_a_device_that_ran_out_of_memory_is_not_near_full_as_well(program):
    totals(program, 15 * GIB, 15 * GIB)
    program.note("out-of-memory", 7, device=0, requested_bytes=2 * GIB, free_bytes=GIB)
    assert [finding.code for finding in checks.run(program.trace)] == ["out-of-memory"]


def test_out_of_memory_that_was_caught_is_no_error(program):
    program.kernel(line=2).note("out-of-memory", 7, device=0, requested_bytes=8 * GIB, free_bytes=GIB)
    assert [finding.severity for finding in checks.run(program.trace)] == ["error"]
    program.kernel(line=9)
    (finding,) = checks.run(program.trace)
    assert (finding.severity, finding.message.endswith("; the program caught the error and went on")) == ("info", True)
    program.trace.facts["exit_code"] = 1
    assert [finding.severity for finding in checks.run(program.trace)] == ["error"]
