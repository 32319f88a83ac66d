"""The machine at the clock's level: when operations start and end, and what the host waits for."""

from __future__ import annotations

from itertools import pairwise

import pytest

from helpers.operations import Allocate, Collective, Copy, EventRecord, EventWait, Free, Kernel, Synchronize, submit
from windtunnel.errors import InternalError
from windtunnel.machine.machine import Machine
from windtunnel.trace.operation import Kind, Signature
from windtunnel.trace.trace import Record

US = 1_000
MS = 1_000_000
MIB = 1 << 20

WHOLE = Signature("aten::mul", ((1 << 26,), (1 << 26,)), ("float32", "float32"), 1)
"""A kernel whose blocks fill the device."""
SMALL = Signature("aten::mul", ((64,), (64,)), ("float32", "float32"), 1)
"""A kernel of one block."""


def run(machine: Machine, operation: object) -> Record:
    record = submit(machine, operation)  # type: ignore[arg-type]
    assert record is not None
    return record


def whole(stream: int = 0, duration_ns: int = MS, device: int = 0) -> Kernel:
    return Kernel("mul", stream, device, WHOLE, duration_ns)


def small(stream: int = 0, duration_ns: int = MS, device: int = 0) -> Kernel:
    return Kernel("mul", stream, device, SMALL, duration_ns)


# ------------------------------------------------------------------------------------------ host and one stream


def test_the_host_pays_for_each_dispatch_and_runs_ahead(machine: Machine) -> None:
    dispatch = machine.devices[0].cost.dispatch_ns("aten::mul")
    records = [run(machine, whole()) for _ in range(3)]
    assert [record.issued_ns for record in records] == [dispatch, 2 * dispatch, 3 * dispatch]
    assert machine.host.now_ns == 3 * dispatch < records[0].end_ns


def test_a_kernel_starts_a_launch_latency_after_its_call(machine: Machine) -> None:
    record = run(machine, whole())
    assert record.start_ns == record.issued_ns + machine.devices[0].cost.launch_ns
    assert record.duration_ns == MS


def test_a_stream_runs_in_order_without_gaps(machine: Machine) -> None:
    records = [run(machine, whole()) for _ in range(4)]
    assert all(later.start_ns == earlier.end_ns for earlier, later in pairwise(records))


def test_small_kernels_are_bound_by_the_host(machine: Machine) -> None:
    records = [run(machine, small(duration_ns=100)) for _ in range(4)]
    assert all(later.start_ns - earlier.end_ns > 100 for earlier, later in pairwise(records))


def test_a_kernel_without_a_length_is_priced(machine: Machine) -> None:
    record = run(machine, Kernel("aten::mul", signature=WHOLE))
    assert record.duration_ns == machine.devices[0].cost.kernel(WHOLE).duration_ns


def test_devices_do_not_wait_for_each_other(machine: Machine) -> None:
    first, second = run(machine, whole(device=0)), run(machine, whole(device=1))
    assert second.start_ns < first.end_ns


# ------------------------------------------------------------------------------------------ several streams


def test_streams_of_one_device_are_not_ordered(machine: Machine) -> None:
    first, second = run(machine, small(0)), run(machine, small(1))
    assert second.start_ns < first.end_ns


def test_whole_kernels_of_two_streams_take_turns(machine: Machine) -> None:
    machine.begin_streams()
    first, second = run(machine, small(1, 1)), run(machine, whole(0))
    third = run(machine, whole(1))
    assert second.start_ns >= first.issued_ns
    assert third.start_ns == second.end_ns


def test_a_small_kernel_beside_a_whole_one_waits_for_room(machine: Machine) -> None:
    run(machine, small(1, 1))
    first, second = run(machine, whole(0)), run(machine, small(1))
    assert second.start_ns == first.end_ns


def test_a_long_queue_of_small_kernels_leaves_room(machine: Machine) -> None:
    run(machine, small(1, 1))
    queue = [run(machine, small(0)) for _ in range(2_000)]
    beside = run(machine, small(1))
    assert beside.start_ns == beside.issued_ns + machine.devices[0].cost.launch_ns < queue[-1].start_ns


def test_what_was_queued_before_the_second_stream_takes_room_too(machine: Machine) -> None:
    assert not machine.concurrent
    first = run(machine, whole(0))
    second = run(machine, whole(1))
    assert machine.concurrent
    assert second.start_ns == first.end_ns


def test_high_priority_goes_before_what_is_queued_but_not_running(machine: Machine) -> None:
    urgent = machine.devices[0].pool_stream(-1)
    machine.begin_streams()
    queue = [run(machine, whole(0)) for _ in range(5)]
    record = run(machine, whole(urgent.index))
    assert queue[0].start_ns < record.issued_ns + machine.devices[0].cost.launch_ns < queue[0].end_ns
    assert record.start_ns == queue[0].end_ns
    after = run(machine, whole(0))
    assert after.start_ns == queue[-1].end_ns + MS  # low priority pays for what it lost


def test_low_priority_waits_for_all_that_is_queued_above_it(machine: Machine) -> None:
    urgent = machine.devices[0].pool_stream(-1)
    machine.begin_streams()
    queue = [run(machine, whole(urgent.index)) for _ in range(3)]
    assert run(machine, whole(0)).start_ns == queue[-1].end_ns


def test_external_streams_and_the_default_stream_wait_for_each_other(machine: Machine) -> None:
    machine.begin_streams()
    external = machine.devices[0].external_stream()
    first = run(machine, small(0))
    second = run(machine, small(external.index))
    third = run(machine, small(0))
    assert second.start_ns == first.end_ns
    assert third.start_ns == second.end_ns
    assert run(machine, small(external.index + 1)).start_ns < third.end_ns


# ------------------------------------------------------------------------------------------ copies and collectives


def test_each_direction_has_one_engine(machine: Machine) -> None:
    def copy(source: int, destination: int, stream: int) -> Record:
        return run(machine, Copy(source, destination, 64 * MIB, 0, stream, pinned=True, blocking=False))

    up, up_again, down = copy(-1, 0, 0), copy(-1, 0, 1), copy(0, -1, 2)
    assert up_again.start_ns == up.end_ns
    assert down.start_ns < up.end_ns


def test_copies_run_beside_kernels_of_other_streams(machine: Machine) -> None:
    kernel = run(machine, whole(0, 50 * MS))
    copy = run(machine, Copy(-1, 0, 64 * MIB, 0, 1, pinned=True, blocking=False))
    assert copy.end_ns < kernel.end_ns


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("ends", [(-1, 0), (0, -1)])
def test_a_blocking_copy_waits_for_its_stream(machine: Machine, ends: tuple[int, int], pinned: bool) -> None:
    kernel = run(machine, whole())
    submit(machine, Copy(*ends, MIB, pinned=pinned))
    assert machine.host.now_ns > kernel.end_ns


def test_a_copy_between_devices_never_blocks_the_host(machine: Machine) -> None:
    kernel = run(machine, whole())
    copy = run(machine, Copy(0, 1, MIB))
    assert copy.start_ns == kernel.end_ns > machine.host.now_ns


def test_pinned_memory_is_faster(machine: Machine) -> None:
    pageable, pinned = run(machine, Copy(-1, 0, 64 * MIB)), run(machine, Copy(-1, 0, 64 * MIB, pinned=True))
    assert pageable.duration_ns > 1.5 * pinned.duration_ns


def test_collectives_queue_on_their_stream(machine: Machine) -> None:
    kernel = run(machine, whole())
    collective = run(machine, Collective("nccl:all_reduce", 64 * MIB, 2))
    assert collective.kind == Kind.COLLECTIVE
    assert collective.start_ns == kernel.end_ns


# ------------------------------------------------------------------------------------------ events


def test_a_wait_orders_a_stream_and_not_the_host(machine: Machine) -> None:
    first = run(machine, small(0))
    submit(machine, EventRecord(7, 0))
    submit(machine, EventWait(7, 1))
    assert run(machine, small(1)).start_ns >= first.end_ns > machine.host.now_ns


def test_a_wait_uses_the_latest_record_at_its_call(machine: Machine) -> None:
    first = run(machine, small(0))
    submit(machine, EventRecord(7, 0))
    submit(machine, EventWait(7, 1))
    later = run(machine, small(0))
    submit(machine, EventRecord(7, 0))
    assert first.end_ns <= run(machine, small(1)).start_ns < later.end_ns


def test_what_follows_an_event_that_tells_the_time_starts_later(machine: Machine) -> None:
    """V100's do_bench adds 2.9 us to a kernel of few; where the host is late, as before, nothing waits for a stamp."""
    first = run(machine, small(0))
    for timed in (False, True):
        event = machine.event(machine.host, timed)
        machine.record(machine.host, event, machine.devices[0].streams[0])
        before = event.time_ns
        after = run(machine, small(0))
        assert before == first.end_ns
        assert after.start_ns - first.end_ns >= 2900 * timed
        assert after.start_ns - first.end_ns < 2900 + 2900 * timed
        first = after
    machine.host.now_ns = first.end_ns + MS
    machine.record(machine.host, event, machine.devices[0].streams[0])
    assert event.time_ns is not None
    machine.host.now_ns += 10 * US
    assert run(machine, small(0)).start_ns == machine.host.now_ns + machine.devices[0].cost.launch_ns


def test_an_event_that_was_never_recorded_orders_nothing(machine: Machine) -> None:
    first = run(machine, small(0))
    event = machine.event(machine.host)
    stream = machine.devices[0].pool_stream()
    machine.begin_streams()
    machine.wait_event(machine.host, event, stream)
    assert machine.query_event(machine.host, event)
    assert machine.synchronize_event(machine.host, event) == 0
    assert run(machine, small(stream.index)).start_ns < first.end_ns


def test_an_event_marks_the_end_of_what_was_there(machine: Machine) -> None:
    kernel = run(machine, whole())
    event = machine.event(machine.host)
    machine.record(machine.host, event, machine.devices[0].default_stream)
    assert event.time_ns == kernel.end_ns
    run(machine, whole())
    machine.synchronize_event(machine.host, event)
    assert machine.host.now_ns == kernel.end_ns


def test_a_query_answers_by_the_clock(machine: Machine) -> None:
    kernel = run(machine, whole())
    event = machine.event(machine.host)
    stream = machine.devices[0].default_stream
    machine.record(machine.host, event, stream)
    assert not machine.query_event(machine.host, event)
    assert not machine.query_stream(machine.host, stream)
    machine.host.wait_until(kernel.end_ns)
    assert machine.query_event(machine.host, event)
    assert machine.query_stream(machine.host, stream)


# ------------------------------------------------------------------------------------------ waiting


def test_the_host_waits_for_a_stream_or_for_the_device(machine: Machine) -> None:
    short, long = run(machine, small(0)), run(machine, small(1, 5 * MS))
    submit(machine, Synchronize(stream=0))
    assert short.end_ns <= machine.host.now_ns < long.end_ns
    record = run(machine, Synchronize())
    assert machine.host.now_ns == record.end_ns == long.end_ns


def test_a_wait_for_what_is_done_takes_its_call_only(machine: Machine) -> None:
    run(machine, whole())
    submit(machine, Synchronize())
    before = machine.host.now_ns
    submit(machine, Synchronize())
    assert machine.host.now_ns == before + machine.devices[0].cost.synchronize_ns


def test_launch_blocking_makes_every_launch_wait(machine: Machine) -> None:
    machine.blocking = True
    for operation in (whole(), whole(1), Copy(0, 1, MIB), Collective("nccl:all_reduce", MIB, 2)):
        assert run(machine, operation).end_ns == machine.host.now_ns


def test_32_streams_a_priority_then_the_first_again(machine: Machine) -> None:
    device = machine.devices[0]
    streams = [device.pool_stream() for _ in range(33)]
    assert len(set(streams)) == 32
    assert streams[32] is streams[0]
    assert device.pool_stream(-1) not in streams
    assert device.default_stream not in streams


def test_threads_start_at_their_parents_time_and_joins_catch_up(machine: Machine) -> None:
    machine.host.advance(5 * US)
    child = machine.fork(machine.host)
    assert child.now_ns == 5 * US
    submit(machine, whole(), child)
    assert machine.host.now_ns == 5 * US
    machine.join(machine.host, child)
    assert machine.host.now_ns == child.now_ns > 5 * US


@pytest.mark.parametrize(("threads", "as_long_as"), [(1, 1.0), (2, 1.0), (4, 2.0), (8, 4.0)])
def test_threads_take_turns_at_python_s_lock(machine: Machine, threads: int, as_long_as: float) -> None:
    """Half of what they do in operators holds it: two find the time, eight wait."""
    begin = machine.host.now_ns
    children = [machine.fork(machine.host) for _ in range(threads)]
    for child in children:
        for _ in range(10):
            submit(machine, Kernel("add"), child)
    alone = children[0].now_ns - begin
    for child in children:
        machine.join(machine.host, child)
    assert machine.host.now_ns - begin == as_long_as * alone


def test_threads_that_wait_do_not_hold_the_lock(machine: Machine) -> None:
    children = [machine.fork(machine.host) for _ in range(8)]
    for child in children:
        child.sleep(50 * US)
    for child in children:
        machine.join(machine.host, child)
    assert machine.host.now_ns == 50 * US


def test_time_cannot_go_backwards(machine: Machine) -> None:
    with pytest.raises(InternalError, match="time cannot go backwards"):
        machine.host.advance(-1)
    machine.host.advance(10)
    assert machine.host.wait_until(3) == 0
    assert machine.host.now_ns == 10


def test_memory_comes_from_the_device_and_goes_back(machine: Machine) -> None:
    assert submit(machine, Allocate(1, 4 * MIB)) is None
    allocator = machine.devices[0].allocator
    assert allocator.memory_stats()["allocated_bytes"]["all"]["current"] == 4 * MIB
    submit(machine, Free(1))
    assert allocator.memory_stats()["allocated_bytes"]["all"]["current"] == 0
