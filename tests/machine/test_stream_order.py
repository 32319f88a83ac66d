"""Happens-before: which accesses are ordered, and which are reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from helpers.operations import Copy, EventRecord, EventWait, Kernel, Synchronize, submit
from windtunnel import checks
from windtunnel.machine.machine import Machine
from windtunnel.machine.order import ROOM, Access, Accesses, awaited, freed, merged
from windtunnel.trace.operation import Kind, Site

X, Y = 1, 2
FIRST, SECOND = Site("train.py", 10), Site("train.py", 20)


def write(stream: int, what: object = X, site: Site = FIRST) -> Kernel:
    return Kernel("fill", stream, writes=frozenset({what}), site=site)


def read(stream: int, what: object = X, site: Site = SECOND) -> Kernel:
    return Kernel("add", stream, reads=frozenset({what}), site=site)


def codes(machine: Machine) -> list[str]:
    return [hazard.code for hazard in machine.trace.hazards]


def test_read_without_wait_is_found(machine: Machine) -> None:
    submit(machine, write(0))
    submit(machine, read(1))
    assert codes(machine) == ["unsynchronized-access"]
    (hazard,) = machine.trace.hazards
    assert (hazard.first, hazard.second) == (FIRST, SECOND)
    assert (hazard.first_access, hazard.second_access) == ("write", "read")
    assert (hazard.first_lane.stream, hazard.second_lane.stream) == (0, 1)
    assert "unsynchronized-access" in [finding.code for finding in checks.run(machine.trace)]


def test_write_after_read_without_wait_is_found(machine: Machine) -> None:
    submit(machine, read(0))
    submit(machine, write(1))
    assert codes(machine) == ["unsynchronized-access"]


def test_reads_of_two_streams_do_not_conflict(machine: Machine) -> None:
    submit(machine, read(0))
    submit(machine, read(1))
    assert codes(machine) == []


def test_one_stream_is_in_order(machine: Machine) -> None:
    for operation in (write(1), read(1), write(1)):
        submit(machine, operation)
    assert codes(machine) == []


@pytest.mark.parametrize(
    "wait",
    [
        lambda machine: (submit(machine, EventRecord(1, 0)), submit(machine, EventWait(1, 1))),
        lambda machine: (submit(machine, EventRecord(1, 0)), submit(machine, Synchronize(event=1))),
        lambda machine: submit(machine, Synchronize(stream=0)),
        lambda machine: submit(machine, Synchronize()),
        lambda machine: submit(machine, Copy(-1, 0, 4096)),
        lambda machine: (
            machine.host.advance(10**9),
            machine.query_stream(machine.host, machine.devices[0].default_stream),
        ),
    ],
    ids=["event", "event synchronize", "stream synchronize", "device synchronize", "blocking copy", "true query"],
)
def test_what_orders_two_streams(machine: Machine, wait: Callable[[Machine], object]) -> None:
    submit(machine, write(0))
    wait(machine)
    submit(machine, read(1))
    assert codes(machine) == []


@pytest.mark.parametrize(
    "wait",
    [
        lambda machine: submit(machine, EventWait(1, 1)),
        lambda machine: (submit(machine, EventRecord(1, 1)), submit(machine, EventWait(1, 1))),
        lambda machine: submit(machine, Synchronize(stream=1)),
        lambda machine: submit(machine, Synchronize(device=1)),
        lambda machine: submit(machine, Copy(0, 1, 4096)),
        lambda machine: machine.query_stream(machine.host, machine.devices[0].default_stream),
        lambda machine: machine.host.advance(10**9),
    ],
    ids=["unrecorded", "own event", "own stream", "other device", "peer copy", "false query", "time alone"],
)
def test_what_orders_nothing(machine: Machine, wait: Callable[[Machine], object]) -> None:
    submit(machine, Kernel("spin", 1, duration_ns=1))
    submit(machine, Kernel("spin", 0, duration_ns=10**6))
    submit(machine, write(0))
    wait(machine)
    submit(machine, read(1))
    assert codes(machine) == ["unsynchronized-access"]


def test_a_record_before_the_write_does_not_order_it(machine: Machine) -> None:
    submit(machine, EventRecord(1, 0))
    submit(machine, write(0))
    submit(machine, EventWait(1, 1))
    submit(machine, read(1))
    assert codes(machine) == ["unsynchronized-access"]


def test_order_goes_through_a_third_stream(machine: Machine) -> None:
    submit(machine, write(0))
    submit(machine, EventRecord(1, 0))
    submit(machine, EventWait(1, 2))
    submit(machine, EventRecord(2, 2))
    submit(machine, EventWait(2, 1))
    submit(machine, read(1))
    assert codes(machine) == []


def test_a_wait_orders_later_work_only(machine: Machine) -> None:
    submit(machine, write(0))
    submit(machine, EventRecord(1, 0))
    submit(machine, read(1))
    submit(machine, EventWait(1, 1))
    submit(machine, read(1))
    assert codes(machine) == ["unsynchronized-access"]


def test_ranges_that_do_not_meet_do_not_conflict(machine: Machine) -> None:
    submit(machine, write(0, (X, 0, 512)))
    submit(machine, write(1, (X, 512, 1024)))
    assert codes(machine) == []
    submit(machine, read(2, (X, 508, 516)))
    assert codes(machine) == ["unsynchronized-access"]
    assert machine.trace.hazards[0].size_bytes == 4


def test_storages_are_told_apart(machine: Machine) -> None:
    submit(machine, write(0, X))
    submit(machine, read(1, Y))
    assert codes(machine) == []


def test_external_streams_are_ordered_with_the_default_stream(machine: Machine) -> None:
    machine.begin_streams()
    external = machine.devices[0].external_stream().index
    submit(machine, write(external))
    submit(machine, read(0))
    submit(machine, write(external))
    assert codes(machine) == []


def test_launch_blocking_orders_everything(machine: Machine) -> None:
    machine.blocking = True
    submit(machine, write(0))
    submit(machine, read(1))
    assert codes(machine) == []


def test_one_incident_is_one_hazard(machine: Machine) -> None:
    submit(machine, write(0))
    submit(machine, Kernel("both", 1, reads=frozenset({X}), writes=frozenset({Y}), site=SECOND))
    submit(machine, Kernel("both", 1, reads=frozenset({Y}), site=SECOND))
    assert codes(machine) == ["unsynchronized-access"]
    assert [record.kind for record in machine.trace].count(Kind.HAZARD) == 1


def test_who_meets_a_late_write_and_the_memory_s_former_use_is_told_of_the_write() -> None:
    former = Accesses()
    former.add(Access(1, 1, 0, 8, False, 0, 0))
    accesses = freed(former, 0, 8)
    accesses.add(Access(1, 2, 0, 8, True, 0, 0))
    found = accesses.conflict(Access(2, 1, 0, 8, False, 0, 0), {})
    assert found is not None
    assert (found.epoch, found.freed) == (2, False)
    reuse = freed(former, 0, 8).conflict(Access(2, 1, 0, 8, True, 0, 0), {})
    assert reuse is not None
    assert reuse.freed


def test_only_who_gets_the_same_bytes_meets_their_former_use() -> None:
    former = Accesses()
    former.base = 1024
    former.add(Access(1, 1, 0, 512, True, 0, 0))
    beside = Accesses()
    beside.base = 1536
    beside.add(Access(1, 2, 0, 512, True, 0, 0))
    joined = merged({}, former, beside)
    assert isinstance(joined, Accesses)
    clock = {1: 1}  # the first is known to be complete, the second is not
    assert freed(joined, 1024, 512).conflict(Access(2, 1, 0, 512, True, 0, 0), clock) is None
    found = freed(joined, 1280, 512).conflict(Access(2, 1, 0, 512, True, 0, 0), clock)
    assert found is not None
    assert (found.start, found.end) == (256, 512)


def test_joined_memory_forgets_the_uses_that_the_host_knows() -> None:
    former, beside = Accesses(), Accesses()
    former.add(Access(1, 1, 0, 8, True, 0, 0))
    beside.add(Access(1, 2, 0, 8, False, 0, 0))
    assert merged({1: 2}, former, beside) is None
    assert merged({1: 1}, former, beside) is beside
    assert merged({1: 1}, former, None) is None
    both = merged({}, former, beside)
    assert isinstance(both, Accesses)
    assert [access.epoch for access in (*both.writes, *both.reads)] == [1, 2]


def test_of_the_uses_of_a_block_those_remain_that_its_marks_do_not_wait_for() -> None:
    former = Accesses()
    former.add(Access(1, 1, 0, 8, True, 0, 0))
    former.add(Access(2, 5, 0, 8, False, 0, 0))
    left = awaited(former, {1: 3})
    assert isinstance(left, Accesses)
    assert [(access.agent, access.epoch) for access in (*left.writes, *left.reads)] == [(2, 5)]
    assert awaited(former, {1: 3, 2: 5}) is None


def test_what_the_host_knows_is_forgotten_and_the_rest_still_met() -> None:
    accesses = Accesses()
    for epoch in range(1, 1001):
        accesses.add(Access(1, epoch, epoch, epoch + 1, False, 0, 0))
        accesses.forget({1: epoch - 1})
    assert len(accesses.reads) <= ROOM
    found = accesses.conflict(Access(2, 1, 0, 2000, True, 0, 0), {1: 999})
    assert found is not None
    assert found.epoch == 1000
    assert accesses.conflict(Access(2, 1, 0, 2000, True, 0, 0), {1: 1000}) is None


def test_what_nobody_waited_for_is_kept() -> None:
    accesses = Accesses()
    for epoch in range(1, 1001):
        accesses.add(Access(1, epoch, epoch, epoch + 1, False, 0, 0))
        accesses.forget({})
    assert len(accesses.reads) == 1000
