"""Random operations on a machine: streams keep their order, waits are honoured, time only goes forward."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from helpers.operations import Collective, Copy, EventRecord, EventWait, Kernel, Operation, Synchronize, submit
from windtunnel import gpus
from windtunnel.machine.machine import Machine
from windtunnel.machine.memory.settings import parse
from windtunnel.machine.occupancy import FULL
from windtunnel.session import build_machine
from windtunnel.trace.operation import Kind, Signature
from windtunnel.trace.trace import Record, Trace

STREAMS = 5
ON_DEVICE = (Kind.KERNEL, Kind.COPY, Kind.COLLECTIVE)


def operations(seed: int, count: int) -> list[Operation]:
    """Random work for two devices of five streams each."""
    random = Random(seed)
    made: list[Operation] = []
    for _ in range(count):
        device, stream, event = random.randrange(2), random.randrange(STREAMS), random.randrange(4)
        elements = random.choice((64, 1 << 16, 1 << 19, 1 << 22))
        signature = Signature("aten::mul", ((elements,), (elements,)), ("float32", "float32"), 1)
        storage = random.randrange(6)
        made.append(
            random.choice(
                (
                    Kernel("mul", stream, device, signature, random.randrange(1, 90_000), writes=frozenset({storage})),
                    Kernel("mul", stream, device, signature, reads=frozenset({storage})),
                    Kernel("mul", stream, device, signature, random.randrange(1, 9_000)),
                    Copy(-1, device, elements, device, stream, random.random() < 0.5, random.random() < 0.3),
                    Copy(device, -1, elements, device, stream, random.random() < 0.5, random.random() < 0.3),
                    Copy(device, 1 - device, elements, device, stream),
                    Collective("nccl:all_reduce", elements, 2, device, stream),
                    EventRecord(event, stream, device),
                    EventWait(event, stream, device),
                    EventWait(event, stream, device),
                    Synchronize(device, random.choice((None, stream))) if random.random() < 0.2
                    else EventRecord(event, stream, device),
                )
            )
        )  # fmt: skip
    return made


def build() -> Machine:
    return build_machine(gpus.parse("2xV100"), (11, 2), Trace(), parse(""))


def on_stream(records: list[Record], device: int, stream: int) -> list[Record]:
    return [r for r in records if r.kind in ON_DEVICE and (r.lane.device, r.lane.stream) == (device, stream)]


@pytest.mark.parametrize("seed", range(8))
def test_invariants_hold(seed: int) -> None:
    machine = build()
    records: list[Record] = []
    recorded: dict[int, int] = {}  # event -> when all before its latest record is done
    not_before: dict[tuple[int, int], int] = {}
    ends: dict[tuple[int, int], int] = {}
    now = 0
    for operation in operations(seed, 1_500):
        record = submit(machine, operation)
        assert machine.host.now_ns >= now
        now = machine.host.now_ns
        place = (operation.device, operation.stream or 0)  # type: ignore[union-attr]
        match operation:
            case EventRecord(event):
                recorded[event] = ends.get(place, 0)
            case EventWait(event):
                not_before[place] = max(not_before.get(place, 0), recorded.get(event, 0))
            case Synchronize(device, stream):
                waited = [end for at, end in ends.items() if at[0] == device and stream in (None, at[1])]
                assert now >= max(waited, default=0)
            case _:
                assert record is not None
                assert record.issued_ns <= record.start_ns <= record.end_ns
                assert record.start_ns >= max(ends.get(place, 0), not_before.get(place, 0))
                ends[place] = record.end_ns
                records.append(record)
    assert_capacity(machine, records)


def assert_capacity(machine: Machine, records: list[Record]) -> None:
    """A kernel starts where there is room beside those that were submitted before and run then, and what starts later
    than it, though submitted before, makes up for the room: all of them take no less than the device can do in that
    time. No two copies at once on one engine."""
    for device in range(2):
        kernels = [record for record in records if record.kind == Kind.KERNEL and record.lane.device == device]
        cost = machine.devices[device].cost
        parts = [max(1, round(cost.kernel(one.signature).occupancy * FULL)) for one in kernels]
        for at, one in enumerate(kernels):
            before = zip(kernels[:at], parts, strict=False)
            beside = sum(part for other, part in before if other.start_ns <= one.start_ns < other.end_ns)
            assert parts[at] + beside <= FULL
        work = sum(part * (one.end_ns - one.start_ns) for one, part in zip(kernels, parts, strict=True))
        assert work <= FULL * (max(one.end_ns for one in kernels) - min(one.start_ns for one in kernels))
        for direction in ("HtoD", "DtoH", "PtoP"):
            copies = sorted(
                (r.start_ns, r.end_ns)
                for r in records
                if r.kind == Kind.COPY and r.lane.device == device and direction in r.signature.name
            )
            assert all(later[0] >= earlier[1] for earlier, later in pairwise(copies))


@pytest.mark.parametrize("seed", range(4))
def test_the_same_seed_gives_the_same_bytes(seed: int, tmp_path: Path) -> None:
    for name in ("one", "two"):
        machine = build()
        for operation in operations(seed, 400):
            submit(machine, operation)
        machine.trace.save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_another_seed_gives_another_trace(tmp_path: Path) -> None:
    saved = []
    for seed in (1, 2):
        machine = build()
        for operation in operations(seed, 50):
            submit(machine, operation)
        machine.trace.save(tmp_path / "trace")
        saved.append((tmp_path / "trace").read_bytes())
    assert saved[0] != saved[1]


def test_a_long_queue_costs_each_launch_the_same() -> None:
    """The room of a device is found without looking at all that is queued."""
    machine = build()
    signature = Signature("aten::mul", ((64,), (64,)), ("float32", "float32"), 1)
    submit(machine, Kernel("mul", 1, 0, signature))
    for _ in range(20_000):
        submit(machine, Kernel("mul", 0, 0, signature, 50_000))
    last = submit(machine, Kernel("mul", 0, 0, signature, 50_000))
    beside = submit(machine, Kernel("mul", 1, 0, signature, 50_000))
    assert last is not None
    assert beside is not None
    assert last.start_ns - beside.start_ns > 45_000_000  # 1024 launches of 50 µs are pending, the queue holds no more
