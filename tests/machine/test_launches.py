"""What launches meet besides their stream: a full queue, what is done once, barriers between streams."""

from __future__ import annotations

import pytest

from helpers.operations import Kernel, Synchronize, submit
from windtunnel import gpus
from windtunnel.analysis.retime import retime
from windtunnel.cost.sustained import limit_of
from windtunnel.machine.launches import MARKED
from windtunnel.machine.machine import Machine
from windtunnel.machine.memory.settings import parse
from windtunnel.session import build_machine
from windtunnel.trace.operation import Kind, Signature
from windtunnel.trace.trace import Record, Trace

MS = 1_000_000
SMALL = Signature("aten::mul", ((64,), (64,)), ("float32", "float32"), 1, 0, 256, 256)
DEPTH = 1024


def of_kind(machine: Machine, kind: Kind) -> list[Record]:
    return [record for record in machine.trace if record.kind == kind]


def test_the_host_waits_while_the_queue_of_a_stream_is_full(machine: Machine) -> None:
    for _ in range(DEPTH + 2 * MARKED):
        submit(machine, Kernel("mul", signature=SMALL, duration_ns=MS))
    waits = of_kind(machine, Kind.QUEUE)
    assert [wait.value for wait in waits] == [DEPTH, DEPTH]
    kernels = of_kind(machine, Kind.KERNEL)
    assert waits[0].end_ns == kernels[MARKED - 1].end_ns
    assert kernels[DEPTH + MARKED].issued_ns > kernels[MARKED - 1].end_ns > kernels[DEPTH - 1].issued_ns


def test_a_host_that_is_slower_than_the_device_never_finds_the_queue_full(machine: Machine) -> None:
    for _ in range(3 * DEPTH):
        submit(machine, Kernel("mul", signature=SMALL))
    assert not of_kind(machine, Kind.QUEUE)


def test_retime_finds_the_queue_full_where_it_would_be(machine: Machine) -> None:
    work = Signature("aten::mm", ((1024, 1024),) * 3, ("float32",) * 3, 2, 2 * 1024**3, 1 << 23, 1 << 22)
    for _ in range(DEPTH + 3 * MARKED):
        submit(machine, Kernel("mm", signature=work))
    submit(machine, Synchronize())
    machine.trace.facts["gpus"] = [{"key": "V100-SXM2-16GB"}] * 2
    same = retime(machine.trace, gpus.parse("V100"))
    assert list(same.rows) == list(machine.trace.rows)
    slower = retime(machine.trace, gpus.parse("K80"))
    waited = [sum(r.duration_ns for r in trace if r.kind == Kind.QUEUE) for trace in (same, slower)]
    assert waited[1] > 2 * waited[0] > 0


def test_products_that_go_on_slow_down_and_an_h100_that_rests_recovers() -> None:
    machine = build_machine(gpus.parse("H100"), (12, 4), Trace(), parse(""))
    product = Signature("aten::mm", ((8192, 8192),) * 3, ("bfloat16",) * 3, 2, 2 * 8192**3, 1 << 28, 1 << 27)
    for _ in range(400):
        submit(machine, Kernel("mm", signature=product))
    submit(machine, Synchronize())
    band = machine.band()
    machine.sleep(machine.host, 1000 * MS)
    submit(machine, Kernel("mm", signature=product))
    lengths = [record.duration_ns for record in of_kind(machine, Kind.KERNEL)]
    short = machine.devices[0].cost.kernel(product).duration_ns
    limit = limit_of("hopper")
    assert limit is not None
    assert lengths[0] == lengths[-1] == short
    assert lengths[-2] == pytest.approx(short / limit.share, rel=1e-3)
    assert band is not None
    assert band >= limit.band


def test_a_barrier_between_streams_is_recorded_once_and_followed_on_another_gpu(machine: Machine) -> None:
    host, device = machine.host, machine.devices[0]
    machine.begin_streams()
    first, second = device.default_stream, device.pool_stream()
    submit(machine, Kernel("mm", 0, signature=SMALL, duration_ns=MS))
    machine.barrier(host, first, second)
    machine.barrier(host, first, second)
    last = submit(machine, Kernel("mul", 1, signature=SMALL))
    assert last is not None
    (barrier,) = of_kind(machine, Kind.BARRIER)
    assert machine.trace.lanes[barrier.value].stream == first.index
    assert last.start_ns == barrier.end_ns == first.ready_ns
    machine.trace.facts["gpus"] = [{"key": "V100-SXM2-16GB"}] * 2
    made = retime(machine.trace, gpus.parse("H100"))
    kernels = [record for record in made if record.kind == Kind.KERNEL]
    assert kernels[1].start_ns == kernels[0].end_ns


def test_what_is_done_once_is_charged_once_a_device_and_named(machine: Machine) -> None:
    host = machine.host
    machine.first_use(host, machine.devices[0], "context")
    assert host.now_ns == 0  # a machine is warm unless a whole program runs on it
    machine.warm = False
    for device in machine.devices:
        for name in ("context", "aten::mm", "aten::bmm", "aten::add", "aten::mm"):
            machine.first_use(host, device, name)
    rows = of_kind(machine, Kind.HOST)
    assert [row.signature.name for row in rows] == ["first use: context", "first use: cuBLAS"] * 2
    assert host.now_ns == sum(row.duration_ns for row in rows) > 500 * MS
