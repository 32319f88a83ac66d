"""host-sync: who waits, how often, and what it costs."""

from __future__ import annotations

from traces import DTOH, HTOD, HTOD_PINNED

from windtunnel import checks


def found(program, *codes):
    return checks.run(program.trace, codes or None)


def test_item_in_a_loop_is_a_warning_with_count_and_time_lost(program):
    for _ in range(20):
        for _ in range(10):
            program.kernel(ns=20_000)
        program.item(line=7)
    (finding,) = found(program, "host-sync")
    assert (finding.severity, finding.site.line, finding.times) == ("warning", 7, 20)
    # After a wait the device has nothing until the host issues the next kernel: 1 us to return and 5 us to issue,
    # 19 times; the last wait is followed by nothing.
    assert finding.lost_ns == 19 * 6_000
    assert "20 times" in finding.message


def test_one_item_at_the_end_costs_nothing(program):
    for _ in range(100):
        program.kernel()
    program.item(line=9)
    (finding,) = found(program, "host-sync")
    assert (finding.severity, finding.lost_ns) == ("info", 0)


def test_item_every_thousand_kernels_is_only_info(program):
    for _ in range(5):
        for _ in range(1000):
            program.kernel()
        program.item(line=7)
    (finding,) = found(program, "host-sync")
    assert finding.severity == "info"


def test_waits_of_one_line_are_one_finding_and_name_the_commonest_cause(program):
    for _ in range(4):
        program.kernel(ns=50_000).wait("Tensor.__repr__", 3).wait("aten::nonzero", 3).wait("Tensor.__repr__", 3)
    (finding,) = found(program, "host-sync")
    assert finding.times == 12
    assert finding.message.startswith("printing a tensor")


def test_a_wait_is_charged_with_no_more_than_it_lasted(program):
    program.kernel(ns=50_000).item(3).item(4).kernel()
    findings = found(program, "host-sync")
    # The second wait lasts 3 us only: removing it could not win more, though the device idles 6 us after it.
    assert {finding.site.line: finding.lost_ns for finding in findings} == {3: 6_000, 4: 3_000}


def test_synchronize_before_reading_the_clock_is_a_measurement(program):
    for _ in range(10):
        program.wait("cudaDeviceSynchronize", 2).clock(3).kernel(ns=90_000).wait("cudaDeviceSynchronize", 5).clock(6)
    assert found(program) == []


def test_synchronize_in_the_loop_is_a_warning(program):
    for _ in range(10):
        program.kernel(ns=90_000).wait("cudaDeviceSynchronize", 5)
    (finding,) = found(program, "host-sync")
    assert (finding.severity, finding.site.line) == ("warning", 5)


def test_waiting_for_an_event_is_at_most_info(program):
    for _ in range(10):
        program.kernel(ns=90_000).wait("cudaEventSynchronize", 5)
    (finding,) = found(program, "host-sync")
    assert finding.severity == "info"


def test_copies_to_the_host_and_blocking_copies_from_pinned_memory(program):
    for _ in range(10):
        program.kernel(ns=90_000).copy(DTOH, 4096, line=4).copy(HTOD_PINNED, 4096, line=5)
    findings = found(program, "host-sync")
    assert {finding.site.line for finding in findings} == {4, 5}
    advice = {finding.site.line: finding.advice for finding in findings}
    assert "non_blocking=True" in advice[5]


def test_a_pageable_copy_is_not_also_a_host_sync(program):
    for _ in range(10):
        program.kernel(ns=90_000).copy(HTOD, 1 << 20, line=4)
    assert found(program, "host-sync") == []
