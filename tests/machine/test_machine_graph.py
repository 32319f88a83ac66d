"""CUDA graphs at the clock's level: what a capture records, what a replay costs, what CUDA refuses."""

from __future__ import annotations

import pytest

from helpers.operations import Copy, Kernel, submit
from windtunnel.machine.capture import Capture
from windtunnel.machine.machine import Machine
from windtunnel.machine.replay import replay
from windtunnel.machine.stream import Stream
from windtunnel.trace.operation import Kind, Signature

MS = 1_000_000
SMALL = Signature("aten::mul", ((64,), (64,)), ("float32", "float32"), 1)


class CaptureError(Exception):
    """Stands for the framework's exception."""


def kernel(stream: int, duration_ns: int = MS) -> Kernel:
    return Kernel("mul", stream, 0, SMALL, duration_ns)


def begin(machine: Machine) -> tuple[Stream, Capture]:
    """A capture on a side stream (number 1)."""
    machine.begin_streams()
    stream = machine.devices[0].pool_stream()
    return stream, Capture(stream, CaptureError)


def test_nothing_runs_while_a_stream_is_captured(machine: Machine) -> None:
    stream, capture = begin(machine)
    assert submit(machine, kernel(1)) is None
    assert submit(machine, Copy(-1, 0, 4096, 0, 1, pinned=True, blocking=False)) is None
    capture.end()
    assert (len(machine.trace), len(capture.nodes)) == (0, 2)
    assert stream.ready_ns == 0
    assert machine.host.now_ns > 0


def test_a_replay_is_one_launch(machine: Machine) -> None:
    stream, capture = begin(machine)
    for _ in range(5):
        submit(machine, kernel(1))
    capture.end()
    before = machine.host.now_ns
    default = machine.devices[0].default_stream
    end = replay(machine, machine.host, default, capture)
    host_ns, device_ns = machine.devices[0].cost.graph_launch_ns(4)  # the first node starts at once
    assert machine.host.now_ns == before + host_ns
    records = list(machine.trace)
    assert len({record.issued_ns for record in records}) == 1
    assert records[-1].end_ns == end == default.ready_ns
    begin_ns = machine.host.now_ns + machine.devices[0].cost.launch_ns
    assert end == begin_ns + 5 * MS + device_ns
    assert {record.lane.stream for record in records} == {0}
    assert stream.ready_ns == 0


def test_replays_queue_on_their_stream(machine: Machine) -> None:
    _, capture = begin(machine)
    submit(machine, kernel(1))
    capture.end()
    default = machine.devices[0].default_stream
    ends = [replay(machine, machine.host, default, capture) for _ in range(3)]
    starts = [record.start_ns for record in machine.trace]
    assert starts[1] >= ends[0]
    assert starts[2] >= ends[1]


def fork_and_join(machine: Machine, stream: Stream, *, join: bool = True) -> None:
    host, event, back = machine.host, machine.event(machine.host), machine.event(machine.host)
    side = machine.devices[0].pool_stream()
    submit(machine, kernel(stream.index))
    machine.record(host, event, stream)
    machine.wait_event(host, event, side)
    submit(machine, kernel(side.index))
    submit(machine, kernel(stream.index))
    if join:
        machine.record(host, back, side)
        machine.wait_event(host, back, stream)
    submit(machine, kernel(stream.index))


def test_streams_that_wait_for_a_captured_one_join_it(machine: Machine) -> None:
    stream, capture = begin(machine)
    fork_and_join(machine, stream)
    capture.end()
    assert [node.line for node in capture.nodes] == [0, 1, 0, 0]
    assert [node.after for node in capture.nodes] == [(), (0,), (), (1,)]
    replay(machine, machine.host, machine.devices[0].default_stream, capture)
    first, left, right, last = [record for record in machine.trace if record.kind == Kind.KERNEL]
    assert left.start_ns >= first.end_ns
    assert left.start_ns < right.end_ns
    assert last.start_ns >= max(left.end_ns, right.end_ns)


def test_work_that_is_not_joined_back_is_refused(machine: Machine) -> None:
    stream, capture = begin(machine)
    fork_and_join(machine, stream, join=False)
    with pytest.raises(CaptureError, match="unjoined work"):
        capture.end()
    assert stream.capture is None


def test_the_host_may_not_wait_for_a_captured_stream(machine: Machine) -> None:
    stream, capture = begin(machine)
    event = machine.event(machine.host)
    machine.record(machine.host, event, stream)
    refused = [
        lambda: machine.synchronize_stream(machine.host, stream),
        lambda: machine.synchronize_device(machine.host, machine.devices[0]),
        lambda: machine.query_stream(machine.host, stream),
        lambda: machine.query_event(machine.host, event),
        lambda: machine.synchronize_event(machine.host, event),
    ]
    for wait in refused:
        with pytest.raises(CaptureError, match="operation not permitted"):
            wait()
    with pytest.raises(CaptureError, match="previous error during capture"):
        capture.end()


def test_a_captured_stream_may_not_wait_for_work_outside(machine: Machine) -> None:
    event = machine.event(machine.host)
    machine.record(machine.host, event, machine.devices[0].default_stream)
    stream, _ = begin(machine)
    machine.wait_event(machine.host, machine.event(machine.host), stream)  # never recorded: nothing to wait for
    with pytest.raises(CaptureError, match="uncaptured work"):
        machine.wait_event(machine.host, event, stream)


def test_two_captures_may_not_meet(machine: Machine) -> None:
    stream, capture = begin(machine)
    other, _ = begin(machine)
    event = machine.event(machine.host)
    machine.record(machine.host, event, stream)
    with pytest.raises(CaptureError, match="merge of separate capture"):
        machine.wait_event(machine.host, event, other)
    assert not capture.valid


def test_an_event_of_an_ended_capture_can_be_recorded_again(machine: Machine) -> None:
    stream, capture = begin(machine)
    event = machine.event(machine.host)
    submit(machine, kernel(1))
    machine.record(machine.host, event, stream)
    capture.end()
    with pytest.raises(CaptureError, match="last recorded in a capturing stream"):
        machine.wait_event(machine.host, event, machine.devices[0].default_stream)
    machine.record(machine.host, event, stream)
    machine.wait_event(machine.host, event, machine.devices[0].default_stream)
    assert machine.query_event(machine.host, event) is False


def test_copies_of_a_graph_use_the_engines(machine: Machine) -> None:
    _, capture = begin(machine)
    submit(machine, Copy(-1, 0, 1 << 26, 0, 1, pinned=True, blocking=False))
    capture.end()
    copy = submit(machine, Copy(-1, 0, 1 << 26, 0, 0, pinned=True, blocking=False))
    other = machine.devices[0].pool_stream()
    replay(machine, machine.host, other, capture)
    assert copy is not None
    assert list(machine.trace)[-1].start_ns >= copy.end_ns


def test_whom_a_capture_forbids_potentially_unsafe_calls(machine: Machine) -> None:
    stream, _ = begin(machine)
    told = {
        mode: [Capture(stream, CaptureError, mode, thread=1).forbids(thread) for thread in (1, 2)]
        for mode in ("global", "thread_local", "relaxed")
    }
    assert told == {"global": [True, True], "thread_local": [True, False], "relaxed": [False, False]}
