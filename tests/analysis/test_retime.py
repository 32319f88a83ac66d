"""Saved traces on other GPUs, and two runs side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from helpers.operations import Collective, Copy, EventRecord, EventWait, Kernel, Operation, Synchronize, submit
from helpers.schemas import conforms
from windtunnel import gpus, networks
from windtunnel.analysis import compare as comparing
from windtunnel.analysis.compare import Numbers, measure
from windtunnel.analysis.retime import does_not_fit, retime
from windtunnel.cli import group
from windtunnel.cost.sustained import limit_of
from windtunnel.errors import FileFormatError, UsageError
from windtunnel.machine.capture import Capture
from windtunnel.machine.machine import Machine
from windtunnel.machine.memory.settings import Settings, parse
from windtunnel.machine.replay import replay
from windtunnel.session import build_machine
from windtunnel.trace.operation import Kind, Signature
from windtunnel.trace.trace import Trace

MIB = 1 << 20
PRODUCT = Signature("aten::mm", ((2048, 2048),) * 3, ("float32",) * 3, 2, 2 * 2048**3, 32 * MIB, 16 * MIB)
HALF = Signature("aten::mm", ((8192, 8192),) * 3, ("float16",) * 3, 2, 2 * 8192**3, 256 * MIB, 128 * MIB)
SUM = Signature("aten::sum", ((1 << 24,), ()), ("float32", "float32"), 1, 0, 64 * MIB, 4)
SMALL = Signature("aten::mul", ((64,), (64,)), ("float32", "float32"), 1, 0, 256, 256)

PROGRAMS: dict[str, list[Operation]] = {
    "one stream": [
        Kernel("mm", signature=PRODUCT),
        Kernel("sum", signature=SUM),
        Synchronize(),
        Kernel("mm", signature=PRODUCT),
    ],
    "copies": [
        Copy(-1, 0, 8 * MIB),
        Copy(-1, 0, 8 * MIB, pinned=True, blocking=False),
        Kernel("mm", signature=PRODUCT),
        Copy(0, 1, 8 * MIB),
        Copy(0, -1, 8 * MIB),
        Kernel("mul", signature=SMALL),
    ],
    "two streams": [
        Kernel("mm", 0, signature=PRODUCT),
        Kernel("mul", 1, signature=SMALL),
        EventRecord(1, 0),
        EventWait(1, 1),
        Kernel("sum", 1, signature=SUM),
        Kernel("mm", 0, signature=PRODUCT),
        Synchronize(event=1),
        Synchronize(stream=1),
    ],
    "time between two events": [
        Kernel("mm", signature=PRODUCT),
        EventRecord(1, timed=True),
        Kernel("mul", signature=SMALL),
        EventRecord(2, timed=True),
        Kernel("sum", signature=SUM),
        Synchronize(event=2),
        Synchronize(),
    ],
    "two devices": [
        Kernel("mm", device=0, signature=PRODUCT),
        Kernel("mm", device=1, signature=PRODUCT),
        Collective("nccl:all_reduce", 8 * MIB, 2, device=0),
        Synchronize(device=1),
        Synchronize(device=0),
    ],
}  # fmt: skip


def build(paces: Sequence[float] = ()) -> Machine:
    machine = build_machine(gpus.parse("2xV100"), (11, 2), Trace(), parse(""), paces=paces)
    machine.trace.facts["gpus"] = [{"key": device.gpu.key, "name": device.gpu.name} for device in machine.devices]
    machine.trace.facts["devices"] = [
        {"memory_bytes": device.gpu.memory_bytes, "peak_reserved_bytes": 12 << 30, "context_bytes": 300 * MIB}
        for device in machine.devices
    ]
    return machine


def run(name: str) -> Trace:
    machine = build()
    for operation in PROGRAMS[name]:
        submit(machine, operation)
    return machine.trace


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_the_same_gpu_nothing_changes(name: str) -> None:
    trace = run(name)
    assert list(retime(trace, gpus.parse("V100")).rows) == list(trace.rows)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gpus_that_differ_give_what_running_there_gives(name: str) -> None:
    paces = [1.03, 0.99]
    machine = build(paces)
    for operation in PROGRAMS[name]:
        submit(machine, operation)
    made = retime(run(name), paces=paces)
    assert list(made.rows) == list(machine.trace.rows)
    assert list(retime(made).rows) == list(made.rows)


def busy(spec: str) -> Machine:
    """A GPU whose tensor cores work for long enough to meet its power limit, and then a captured graph of the same."""
    machine = build_machine(gpus.parse(spec), (11, 2), Trace(), parse(""))
    machine.trace.facts["gpus"] = [{"key": device.gpu.key, "name": device.gpu.name} for device in machine.devices]
    for _ in range(60):
        submit(machine, Kernel("mm", signature=HALF))
        submit(machine, Kernel("sum", signature=SUM))
    submit(machine, Synchronize())
    return machine


def replayed(machine: Machine, product: Signature, number: int, times: int) -> None:
    """Capture so many products in a graph, and replay it so many times."""
    machine.begin_streams()
    capture = Capture(machine.devices[0].pool_stream(), RuntimeError)
    for _ in range(number):
        submit(machine, Kernel("mm", 1, signature=product))
    capture.end()
    for _ in range(times):
        replay(machine, machine.host, machine.devices[0].default_stream, capture)


@pytest.mark.parametrize("spec", ["A100", "H100", "V100"])
def test_a_load_that_meets_the_power_limit_is_retimed_as_it_runs(spec: str) -> None:
    trace = busy("A100").trace
    lengths = [row[6] - row[5] for row in trace.rows if trace.signatures[row[2]].name == "aten::mm"]
    assert lengths[-1] > 1.15 * lengths[0]
    assert list(retime(trace, gpus.parse(spec)).rows) == list(busy(spec).trace.rows)


def test_a_graph_that_meets_the_power_limit_slows_down_and_is_retimed_alike() -> None:
    machine = busy("A100")
    replayed(machine, HALF, 40, 1)
    rows = list(machine.trace.rows)
    limit = limit_of("ampere")
    assert limit is not None
    assert rows[-1][6] - rows[-1][5] == pytest.approx(
        machine.devices[0].cost.kernel(HALF).duration_ns / limit.share, rel=0.02
    )
    assert list(retime(machine.trace, gpus.parse("A100")).rows) == rows


def test_on_the_same_gpu_a_graph_replays_alike() -> None:
    machine = build()
    replayed(machine, PRODUCT, 4, 3)
    assert list(retime(machine.trace, gpus.parse("V100")).rows) == list(machine.trace.rows)


@pytest.mark.parametrize("name", PROGRAMS)
def test_another_gpu_gives_what_running_there_gives(name: str) -> None:
    machine = build_machine(gpus.parse("2xH100"), (11, 8), Trace(), parse(""))
    for operation in PROGRAMS[name]:
        submit(machine, operation)
    assert list(retime(run(name), gpus.parse("H100")).rows) == list(machine.trace.rows)


def meeting(spec: str, late_ns: int) -> Trace:
    """A rank that computes, receives a message, adds up with another rank that is ready `late_ns` after it, waits."""
    machine = build_machine(gpus.parse(spec), (11, 8), Trace(), parse(""))
    machine.trace.facts["gpus"] = [{"key": device.gpu.key, "name": device.gpu.name} for device in machine.devices]
    host, stream = machine.host, machine.devices[0].default_stream
    message = Signature("nccl:recv", detail=(("ranks", 2), ("group", "0"), ("peer", 1), ("tag", 0)))
    total = Signature("c10d::allreduce_", detail=(("ranks", 2), ("group", "0")))
    launch = machine.number(host)
    machine.post(host, stream, message, launch)
    for _ in range(4):
        submit(machine, Kernel("mm", signature=PRODUCT))
    machine.meet(host, stream, message, machine.ready_ns(host, stream, message.name) + late_ns, launch)
    machine.collective(host, stream, message, 8 * MIB)
    event = machine.event(host)
    machine.record(host, event, stream, charged=False)
    machine.meet(host, stream, total, machine.ready_ns(host, stream, total.name) + late_ns, 1)
    machine.collective(host, stream, total, 8 * MIB)
    machine.synchronize_event(host, event)
    machine.meet(
        host, None, Signature("c10d::barrier", detail=(("ranks", 2), ("group", "1"))), host.now_ns + late_ns, 1
    )
    submit(machine, Kernel("mm", signature=PRODUCT))
    submit(machine, Synchronize(device=0))
    return machine.trace


@pytest.mark.parametrize("late_ns", [0, 3_000_000])
def test_on_the_same_gpu_waits_for_other_ranks_stay(late_ns: int) -> None:
    trace = meeting("H100", late_ns)
    assert list(retime(trace, gpus.parse("H100")).rows) == list(trace.rows)


def test_without_waits_another_gpu_gives_what_running_there_gives() -> None:
    assert list(retime(meeting("V100", 0), gpus.parse("H100")).rows) == list(meeting("H100", 0).rows)


def test_other_ranks_become_faster_as_this_one_does() -> None:
    late_ns = 40_000_000
    before, after = meeting("V100", late_ns), retime(meeting("V100", late_ns), gpus.parse("H100"))
    spent = [sum(r.duration_ns for r in trace if r.kind == Kind.KERNEL) for trace in (before, after)]
    waits = [r.duration_ns for r in after if r.kind == Kind.MEETING]
    assert waits == [pytest.approx(late_ns * spent[1] / spent[0], rel=1e-6)] * 3
    assert spent[1] < spent[0] / 2


def threaded(spec: str) -> Trace:
    """A thread for each of two GPUs, in the place of one that has ended; the main thread waits for both."""
    machine = build_machine(gpus.parse(f"2x{spec}"), (11, 8), Trace(), parse(""))
    machine.trace.facts["gpus"] = [{"key": device.gpu.key, "name": device.gpu.name} for device in machine.devices]
    first, second = machine.devices
    cost = machine.price(first, PRODUCT)
    for _ in range(3):
        children = [machine.fork(machine.host), machine.fork(machine.host)]
        for child, device in zip(children, machine.devices, strict=True):
            child.advance(2_000)
            for _ in range(3):
                machine.launch(child, device.default_stream, cost)
        machine.synchronize_device(children[1], second)
        children[1].advance(1_000)
        for child in children:
            machine.join(machine.host, child)
        machine.launch(machine.host, first.default_stream, cost)
        machine.synchronize_device(machine.host, first)
    return machine.trace.canonical()


def test_on_the_same_gpu_threads_stay_as_they_were() -> None:
    trace = threaded("V100")
    assert list(retime(trace, gpus.parse("V100")).rows) == list(trace.rows)


def test_threads_wait_for_one_another_on_another_gpu_too() -> None:
    """They run again in the places of those that have ended: their rows alone do not say when they start."""
    assert retime(threaded("V100"), gpus.parse("H100")).end_ns() == pytest.approx(threaded("H100").end_ns(), rel=0.01)


def test_a_row_of_a_message_names_group_peer_and_tag() -> None:
    post, *_ = [record for record in meeting("H100", 0) if record.kind == Kind.POST]
    met, *_ = [record for record in meeting("H100", 0) if record.kind == Kind.MEETING]
    work, *_ = [record for record in meeting("H100", 0) if record.kind == Kind.COLLECTIVE]
    assert post.signature == met.signature == work.signature
    assert dict(post.signature.detail) == {"ranks": 2, "group": "0", "peer": 1, "tag": 0}
    assert post.value == met.value > 0


def test_copies_between_gpus_share_an_engine_with_those_within_one() -> None:
    machine = build()
    machine.begin_streams()
    machine.devices[0].pool_stream()
    for operation in (Copy(0, 1, 64 * MIB, stream=0), Copy(0, 0, 64 * MIB, stream=1), Copy(0, 1, 64 * MIB, stream=1)):
        submit(machine, operation)
    assert list(retime(machine.trace, gpus.parse("V100")).rows) == list(machine.trace.rows)


def test_the_facts_are_the_new_gpus() -> None:
    facts = retime(run("one stream"), gpus.parse("H100")).facts
    assert {gpu["key"] for gpu in facts["gpus"]} == {"H100-SXM5-80GB"}
    assert facts["retimed_from"] == ["V100-SXM2-16GB"] * 2
    assert facts["band"] > 0


def test_each_device_may_have_its_own() -> None:
    made = retime(run("two devices"), gpus.parse("V100,H100"))
    first, second = [record.duration_ns for record in made if record.kind == Kind.KERNEL]
    assert first > 2 * second


def test_too_many_gpus_are_refused() -> None:
    with pytest.raises(UsageError, match="has 2 devices"):
        retime(run("one stream"), gpus.parse("3xV100"))


def test_a_trace_without_gpus_is_refused() -> None:
    with pytest.raises(FileFormatError, match="does not say which GPUs"):
        retime(Trace(), gpus.parse("V100"))


def test_what_does_not_fit_is_told() -> None:
    assert does_not_fit(retime(run("one stream"), gpus.parse("H100"))) == []
    assert does_not_fit(retime(run("one stream"), gpus.parse("K80"))) == [0, 1]


# ------------------------------------------------------------------------------------------ compare


def test_the_numbers_of_a_trace() -> None:
    numbers = measure(run("copies"))
    assert (numbers.kernels, numbers.copies, numbers.copied_bytes) == (2, 4, 32 * MIB)
    assert numbers.operators["aten::mm"][0] == 1
    assert 0 < numbers.busy_share <= 1
    assert numbers.peak_reserved_bytes == 12 << 30


def of_two_nodes(network: str | None = None) -> Trace:
    """Sixteen ranks on two nodes of eight A100 add 64 MiB, twice."""
    key = "A100-SXM4-40GB"
    chosen = networks.default_for(key) if network is None else networks.find(network, key)
    trace = Trace()
    machine = build_machine(gpus.parse("A100"), (12, 8), trace, Settings(), network=chosen)
    stream = machine.devices[0].default_stream
    call = Signature("c10d::allreduce_", detail=(("ranks", 16), ("group", "0"), *networks.Spread(16, 2).detail()))
    for step in range(4):
        machine.collective(machine.host, stream, call, 64 * MIB)
        machine.mark(machine.host, Kind.STEP, "step", step)
    trace.facts.update(gpus=[gpus.describe(gpus.find(key))], devices=[], source="modelled", nodes=2, world_size=16)
    trace.facts["network"] = chosen.describe()
    return trace


@pytest.mark.parametrize("network", ["p4d", "dgx-a100", "ethernet-25"])
def test_another_network_gives_the_times_of_a_run_on_it(network: str) -> None:
    made = retime(of_two_nodes(), network=networks.find(network, ""))
    assert [row[4:] for row in made.rows] == [row[4:] for row in of_two_nodes(network).rows]
    assert made.facts["network"]["key"] == network
    assert made.facts["network_band"][0] <= 1.0 <= made.facts["network_band"][1]


def test_streams_keep_their_priorities() -> None:
    """FSDP2 copies on streams of high priority, which go before what fills the GPU (torch.cuda.Stream(priority=-1))."""
    trace = Trace()
    machine = build_machine(gpus.parse("A100"), (12, 8), trace, Settings())
    device = machine.devices[0]
    urgent = device.pooled(-1, 0)
    machine.begin_streams()
    product, small = machine.price(device, HALF), machine.price(device, SMALL)
    for stream, cost in ((device.default_stream, product), (urgent, small)):
        for _ in range(3):
            machine.launch(machine.host, stream, cost)
    trace.facts.update(gpus=[gpus.describe(gpus.find("A100"))], devices=[], source="modelled")
    without = retime(trace)
    trace.facts["priorities"] = [[0, urgent.index, -1]]
    made = retime(trace)
    assert [row[4:] for row in made.rows] == [row[4:] for row in trace.rows]
    assert [row[4:] for row in without.rows] != [row[4:] for row in trace.rows]


def test_another_gpu_keeps_the_network() -> None:
    before = of_two_nodes("ethernet-10")
    made = retime(before, gpus.parse("H100"))
    assert measure(made).duration_ns == pytest.approx(measure(before).duration_ns, rel=0.05)


def test_a_trace_is_like_itself() -> None:
    assert comparing.compare(measure(run("copies")), measure(run("copies"))).same


def test_differences_are_named_and_sorted() -> None:
    result = comparing.compare(measure(run("one stream")), measure(retime(run("one stream"), gpus.parse("H100"))))
    assert not result.same
    assert [one.name for one in result.operators] == ["aten::mm", "aten::sum"]
    (duration,) = [one for one in result.differences if one.name == "duration_ns"]
    assert duration.change is not None
    assert duration.change < -0.5


def test_a_tolerance_is_a_share_of_the_first() -> None:
    first, second = Numbers(duration_ns=100), Numbers(duration_ns=104)
    assert not comparing.compare(first, second, 0.03).same
    assert comparing.compare(first, second, 0.04).same


# ------------------------------------------------------------------------------------------ commands


@pytest.fixture
def invoke() -> Callable[..., tuple[int, str]]:
    def call(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(group, list(arguments), standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return int(result.return_value or 0), result.stdout

    return call


def test_commands_retime_and_compare(invoke: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    first, second, report = (str(tmp_path / name) for name in ("v100.trace", "h100.trace", "h100.json"))
    run("copies").save(first)
    code, text = invoke("retime", first, "--gpu", "H100", "--trace", second)
    assert code == 0
    assert "H100" in text
    invoke("retime", first, "--gpu", "H100", "--report", report)
    code, text = invoke("compare", first, second)
    assert code == 1
    assert "aten::mm" in text
    assert invoke("compare", second, second)[0] == 0
    code, text = invoke("compare", first, report, "--json")
    assert code == 1
    assert json.loads(text)["same"] is False
    assert conforms("compare", json.loads(text))
    assert conforms("retime", json.loads(Path(report).read_text()))
    assert invoke("compare", second, report)[0] == 0


def test_networks_are_compared_in_a_table(invoke: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    file = str(tmp_path / "two.trace")
    of_two_nodes().save(file)
    code, text = invoke("retime", file, "--network", "dgx-a100,ethernet-25")
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()] == ["dgx-a100", "ethernet-25"]
    assert "in groups of 16 ranks on 2 nodes" in text
    assert "AWS p4d" in invoke("retime", file, "--network", "p4d", "-v")[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [((), "nothing to change"), (("--network", "p5"), "one node"), (("--network", "p55", "--gpu", "T4"), "one node")],
)
def test_what_has_no_network_is_refused(
    invoke: Callable[..., tuple[int, str]], tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    run("copies").save(tmp_path / "v100.trace")
    with pytest.raises(UsageError, match=words):
        invoke("retime", str(tmp_path / "v100.trace"), *options)


def test_a_gpu_that_is_too_small_ends_with_65(invoke: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    run("copies").save(tmp_path / "v100.trace")
    assert invoke("retime", str(tmp_path / "v100.trace"), "--gpu", "K80")[0] == 65


def test_what_is_neither_trace_nor_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(FileFormatError, match="not a report"):
        comparing.load(tmp_path / "x.json")
