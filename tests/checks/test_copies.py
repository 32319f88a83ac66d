"""Checks on copies: pageable, repeated, small, and there and back."""

from __future__ import annotations

import pytest
from traces import DTOH, DTOH_PINNED, HTOD, HTOD_PINNED, PTOP

from windtunnel import checks


def found(program, *codes):
    return [(f.code, f.site.line, f.severity) for f in checks.run(program.trace, codes or None)]


def test_batches_from_pageable_memory(program):
    for _ in range(10):
        program.copy(HTOD, 1 << 20, line=4).kernel(ns=500_000)
    (finding,) = checks.run(program.trace)
    assert (finding.code, finding.site.line, finding.severity) == ("pageable-copy", 4, "warning")
    assert (finding.times, finding.size_bytes) == (10, 10 << 20)


def test_a_model_moved_once_is_not_reported(program):
    for _ in range(300):
        program.copy(HTOD, 8 << 20, line=4)
    program.kernel()
    assert found(program) == []


def test_small_pageable_copies_that_cost_nothing_are_not_reported(program):
    for _ in range(10):
        program.copy(HTOD, 512, line=4).kernel(ns=10_000_000)
    assert found(program) == []


def test_non_blocking_from_pageable_memory_promises_what_it_does_not_keep(program):
    for _ in range(10):
        program.copy(HTOD, 1 << 20, line=4, non_blocking=1).kernel()
    assert found(program) == [("pageable-copy", 4, "warning")]


def test_a_single_non_blocking_copy_is_info(program):
    program.copy(HTOD, 1 << 20, line=4, non_blocking=1).kernel()
    assert found(program) == [("pageable-copy", 4, "info")]


def test_non_blocking_into_pageable_memory_is_not_also_a_host_sync(program):
    for _ in range(10):
        program.kernel().copy(DTOH, 1 << 20, line=4, non_blocking=1).wait("cudaMemcpy (blocking)", 4)
    assert found(program) == [("pageable-copy", 4, "warning")]


def test_pinned_and_non_blocking_is_silent(program):
    for _ in range(10):
        program.copy(HTOD_PINNED, 1 << 20, line=4, non_blocking=1).kernel()
    assert found(program) == []


def test_the_same_data_again_and_again(program):
    for _ in range(5):
        program.copy(HTOD, 1 << 20, line=4, source=7, source_version=1, source_offset=0).kernel(ns=900_000)
    (finding,) = checks.run(program.trace)
    assert (finding.code, finding.severity, finding.times, finding.size_bytes) == (
        "repeated-copy",
        "warning",
        4,
        4 << 20,
    )


def test_weights_that_a_side_stream_brings_in_for_each_use(program):
    for _ in range(6):
        program.copy(
            HTOD_PINNED, 16 << 20, line=4, stream=1, non_blocking=1, source=7, source_version=0, source_offset=0
        ).kernel()
    assert found(program) == []


@pytest.mark.parametrize("changing", ["source", "source_version", "source_offset"])
def test_other_data_is_not_the_same_data(program, changing):
    for number in range(5):
        detail = {"source": 7, "source_version": 1, "source_offset": 0, changing: number}
        program.copy(HTOD_PINNED, 1 << 20, line=4, non_blocking=1, **detail).kernel()
    assert found(program) == []


def test_a_data_set_epoch_after_epoch_is_left_alone(program):
    for _ in range(3):
        for batch in range(8):
            program.copy(
                HTOD_PINNED, 1 << 20, line=4, non_blocking=1, source=batch, source_version=0, source_offset=0
            ).kernel()
    assert found(program) == []


def test_samples_moved_one_by_one(program):
    for _ in range(3):
        for _ in range(32):
            program.copy(HTOD, 600, line=4)
        program.kernel()
    assert found(program) == [("many-small-copies", 4, "warning")]


def test_a_whole_data_set_moved_in_crumbs(program):
    for _ in range(2000):
        program.copy(HTOD, 600, line=4)
    assert found(program) == [("many-small-copies", 4, "warning")]


def test_there_and_back(program):
    for number in range(3):
        program.kernel(ns=900_000)
        program.copy(DTOH, 1 << 20, line=4, source=1, destination=100 + number)
        program.copy(HTOD, 1 << 20, line=5, source=100 + number, source_version=0, source_offset=0)
    (finding,) = checks.run(program.trace)
    assert (finding.code, finding.site.line, finding.other.line, finding.times) == ("copy-back-and-forth", 5, 4, 3)


def test_offloading_stays_on_the_host_for_longer(program):
    for number in range(3):
        program.copy(DTOH_PINNED, 1 << 20, line=4, non_blocking=1, source=1, destination=100 + number)
        for _ in range(20):
            program.kernel()
        program.copy(HTOD_PINNED, 1 << 20, line=5, non_blocking=1, source=100 + number, source_version=0)
    assert found(program) == []


def test_copies_between_devices_are_nobody_s_business(program):
    for _ in range(10):
        program.copy(PTOP, 1 << 20, line=4, source=1, source_version=0, source_offset=0).kernel()
    assert found(program) == []


def test_what_a_line_converts_is_pinned_there(program):
    program.trace.sources["train.py"] = {3: "x = batch.float().to(device)", 4: "y = batch.to(device)"}
    for _ in range(40):
        program.copy(HTOD, 1 << 22, line=3).copy(HTOD, 1 << 22, line=4).kernel(ns=50_000, line=5)
    advice = {one.site.line: one.advice for one in checks.run(program.trace, ["pageable-copy"])}
    assert advice[3].startswith("put `.pin_memory()` before this copy")
    assert advice[4].startswith("pin the source (`DataLoader(..., pin_memory=True)`")
