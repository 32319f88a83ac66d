"""Streams, events, and copies that are really late."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.benchmark import Timer

import windtunnel
from helpers.findings import errors
from windtunnel.session import Session
from windtunnel.trace.operation import Kind

BIG = 2048


def product(device: str = "cuda") -> torch.Tensor:
    x = torch.ones(BIG, BIG, device=device)
    return x @ x


def test_kernels_are_asynchronous(session: Session) -> None:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    product()
    issued = time.perf_counter() - begin
    torch.cuda.synchronize()
    done = time.perf_counter() - begin
    assert issued < done / 5


@pytest.mark.parametrize(
    "first",
    [
        torch.cuda.synchronize,
        lambda: torch.cuda.current_stream().synchronize(),
        lambda: torch.cuda.current_stream().query(),
        lambda: torch.cuda.Event().record(),
        lambda: torch.cuda._sleep(10),
        lambda: torch.cuda.Stream(),
        lambda: torch.cuda.mem_get_info(),
        lambda: torch.empty(4).pin_memory(),
        lambda: torch.empty(4, device="cuda"),
    ],
)
def test_whatever_uses_a_device_first_pays_for_its_context(first: Callable[[], object], session: Session) -> None:
    session.machine.warm = False
    begin = time.perf_counter()
    torch.cuda.Event(), torch.cuda.current_stream(), torch.cuda.get_device_properties(0)
    asked = time.perf_counter()
    first()
    used = time.perf_counter()
    torch.cuda.Event().record(torch.cuda.Stream())
    assert asked - begin < 0.01 < 0.2 < used - asked
    assert time.perf_counter() - used < 0.01


def test_pytorchs_benchmark_timer_reads_the_modelled_clock(session: Session) -> None:
    x = torch.ones(2048, 2048, device="cuda")
    with torch.no_grad():
        timed = Timer("x @ x", globals={"x": x}).timeit(3)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    x @ x
    end.record()
    end.synchronize()
    assert timed.mean == pytest.approx(start.elapsed_time(end) / 1000, rel=0.2)


def test_events_time_kernels_in_milliseconds(session: Session) -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    product()
    end.record()
    assert not end.query()
    end.synchronize()
    assert end.query()
    flops = 2 * BIG**3
    assert flops / 15.7e12 * 1e3 < start.elapsed_time(end) < flops / 15.7e12 * 1e3 * 2


def test_misuse_of_events_raises_as_pytorch_does(session: Session) -> None:
    timed, untimed = torch.cuda.Event(enable_timing=True), torch.cuda.Event()
    with pytest.raises(ValueError, match="enable_timing=True"):
        timed.elapsed_time(untimed)
    with pytest.raises(ValueError, match="must be recorded"):
        timed.elapsed_time(torch.cuda.Event(enable_timing=True))
    assert untimed.query()
    untimed.wait()


def test_streams_are_what_torch_says(session: Session) -> None:
    stream = torch.cuda.Stream()
    assert isinstance(stream, torch.Stream)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
        assert torch.cuda.current_stream().cuda_stream == stream.cuda_stream
    assert torch.cuda.current_stream().cuda_stream == 0
    other = torch.cuda.Stream(device=1)
    with torch.cuda.stream(other):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0
    assert "device=cuda:1" in repr(other)
    assert torch.Stream(device="cuda") != stream
    assert stream.priority == 0
    assert torch.cuda.Stream(priority=-1).priority == -1


def test_ids_are_those_of_pytorch(session: Session) -> None:
    """Measured on an H100 with torch 2.11 (make hardware)."""
    streams = [torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream(priority=-1)]
    assert [stream.stream_id for stream in streams] == [3, 35, 5]
    assert torch.cuda.default_stream().stream_id == 0
    for stream in streams:
        same = torch.cuda.Stream(stream_id=stream.stream_id, device_index=0, device_type=1)
        assert (same, same.cuda_stream, same.priority) == (stream, stream.cuda_stream, stream.priority)
        torch._C._cuda_setStream(stream_id=stream.stream_id, device_index=0, device_type=1)
        assert torch.cuda.current_stream() == stream
        assert torch._C._cuda_getCurrentStream(0) == (stream.stream_id, 0, 1)
    torch._C._cuda_setStream(stream_id=0, device_index=0, device_type=1)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    third = torch.cuda.Stream(stream_id=67, device_index=0, device_type=1)
    assert torch.cuda.Stream() == third
    with pytest.raises(RuntimeError, match="Unrecognized stream 31"):
        torch.cuda.Stream(stream_id=31, device_index=0, device_type=1)


def test_a_stream_that_is_current_by_its_handle_is_told_by_it(session: Session) -> None:
    """Measured on an H100: PyTorch keeps the id by which a stream was made the current one."""
    made = torch.cuda.Stream()
    external = torch.cuda.ExternalStream(made.cuda_stream)
    assert external != made
    with torch.cuda.stream(external):
        assert torch.cuda.current_stream() == external
        assert torch.cuda.current_stream() != made
    with torch.cuda.stream(made):
        assert torch.cuda.current_stream() == made


def test_the_id_of_an_external_stream_is_its_handle(session: Session) -> None:
    for pointer in (0x1000, torch.cuda.Stream().cuda_stream):
        stream = torch.cuda.ExternalStream(pointer)
        assert (stream.stream_id, stream.cuda_stream) == (pointer, pointer)
    with torch.cuda.stream(torch.cuda.ExternalStream(0x1000)):
        assert torch.cuda.current_stream().stream_id == torch.cuda.current_stream().cuda_stream == 0x1000


def test_the_33rd_stream_is_the_first(session: Session) -> None:
    streams = [torch.cuda.Stream() for _ in range(33)]
    assert streams[32] == streams[0]
    assert len({stream.cuda_stream for stream in streams}) == 32


def test_reading_on_another_stream_without_waiting(session: Session) -> None:
    stream = torch.cuda.Stream()
    x = torch.empty(100, 100, device="cuda").normal_()
    with torch.cuda.stream(stream):
        torch.sum(x)
    assert errors(session) == ["unsynchronized-access"]


@pytest.mark.parametrize("how", ["wait_stream", "event", "synchronize", "stream.synchronize", "query"])
def test_ordered_reads_are_silent(session: Session, how: str) -> None:
    stream = torch.cuda.Stream()
    x = torch.empty(100, 100, device="cuda").normal_()
    if how == "wait_stream":
        stream.wait_stream(torch.cuda.current_stream())
    elif how == "event":
        stream.wait_event(torch.cuda.current_stream().record_event())
    elif how == "synchronize":
        torch.cuda.synchronize()
    elif how == "stream.synchronize":
        torch.cuda.current_stream().synchronize()
    else:
        while not torch.cuda.current_stream().query():
            pass
    with torch.cuda.stream(stream):
        total = torch.sum(x)
    torch.cuda.current_stream().wait_stream(stream)
    total.item()
    assert errors(session) == []


def test_backward_runs_on_the_streams_of_its_forward(session: Session) -> None:
    stream = torch.cuda.Stream()
    w = torch.ones(8, 8, device="cuda", requires_grad=True)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = (w * 2).sum()
    torch.cuda.current_stream().wait_stream(stream)
    y.backward()
    assert w.grad is not None
    w.grad.add_(1)
    assert errors(session) == []


@pytest.mark.parametrize("function", [False, True])
def test_a_leafs_gradient_comes_on_the_stream_of_its_first_use(session: Session, function: bool) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    side, seen = torch.cuda.Stream(), []
    x = torch.ones(4, device="cuda", requires_grad=True)
    x.register_hook(lambda grad: seen.append(torch.cuda.current_stream()))
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = Double.apply(x) if function else x * 2
    torch.cuda.current_stream().wait_stream(side)
    (y + x).sum().backward()
    (x * 2).sum().backward()  # `y` keeps the leaf's node
    del y
    (x * 2).sum().backward()
    assert seen == [side, side, torch.cuda.default_stream()]


def test_a_view_whose_history_is_forbidden_is_read_without_asking_for_it(session: Session) -> None:
    base, weight = torch.ones(4, device="cuda"), torch.full((4,), 3.0, device="cuda", requires_grad=True)
    with torch.no_grad():
        view = base[:2]
    base.mul_(weight)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        assert torch.zeros(2, device="cuda").copy_(view).tolist() == [3.0, 3.0]
    with pytest.raises(RuntimeError, match="A view was created in no_grad mode"):
        view.grad_fn  # noqa: B018 - asking is what raises


def test_a_late_copy_is_stale_until_the_host_waits(session: Session) -> None:
    x = torch.full((4,), 3.0, device="cuda")
    host = torch.zeros(4, pin_memory=True)
    host.copy_(x, non_blocking=True)
    assert host.tolist() == [0.0] * 4
    torch.cuda.synchronize()
    assert host.tolist() == [3.0] * 4
    assert errors(session) == ["stale-read"]


@pytest.mark.parametrize(("size", "waits"), [(64 << 10, False), ((64 << 10) + 4, True)])
def test_small_pageable_memory_is_taken_with_the_command(session: Session, size: int, waits: bool) -> None:
    """`non_blocking` from pageable memory: up to 64 KB the host does not wait for what the stream does."""
    a = torch.randn(BIG, BIG, device="cuda")
    host = session.machine.host
    source = torch.ones(size // 4)
    torch.cuda.synchronize()
    a @ a
    begin_ns = host.now_ns
    there = source.to("cuda", non_blocking=True)
    source.zero_()  # staged: it is the program's again
    taken_ns = host.now_ns - begin_ns
    begin_ns = host.now_ns
    torch.cuda.synchronize()
    assert (taken_ns > 1_000_000) is waits
    assert (host.now_ns - begin_ns > 1_000_000) is not waits
    assert float(there.sum()) == size // 4


def test_to_cpu_non_blocking_is_pinned_and_late(session: Session) -> None:
    host = torch.full((4,), 3.0, device="cuda").to("cpu", non_blocking=True)
    assert host.is_pinned()
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    assert host.tolist() == [3.0] * 4
    assert errors(session) == []


def test_an_overwritten_source_arrives_overwritten(session: Session) -> None:
    source = torch.ones(4).pin_memory()
    there = source.to("cuda", non_blocking=True)
    source.fill_(9.0)
    assert there.tolist() == [9.0] * 4
    assert errors(session) == ["early-overwrite"]


def test_a_copy_in_flight_keeps_neither_side(session: Session) -> None:
    before = torch.cuda.memory_allocated()
    places = set()
    for _ in range(3):
        there = torch.ones(1 << 16).pin_memory().to("cuda", non_blocking=True)
        places.add(there.data_ptr())
        del there
    assert torch.cuda.memory_allocated() == before
    assert len(places) == 1
    torch.ones(1 << 16, device="cuda").to("cpu", non_blocking=True)  # nobody keeps what would arrive
    torch.cuda.synchronize()
    assert errors(session) == []


def test_copies_of_one_stream_take_turns_in_a_pinned_buffer(session: Session) -> None:
    ones, buffer = torch.ones(4, device="cuda"), torch.zeros(4).pin_memory()
    buffer.copy_(ones, non_blocking=True)
    back = buffer.to("cuda", non_blocking=True)
    buffer.copy_(ones + 1, non_blocking=True)
    buffer.copy_(ones + 2)
    assert (back.tolist(), buffer.tolist()) == ([1.0] * 4, [3.0] * 4)
    assert errors(session) == []


def test_copies_of_two_streams_race_in_a_pinned_buffer(session: Session) -> None:
    there, buffer, side = torch.ones(4, device="cuda"), torch.zeros(4).pin_memory(), torch.cuda.Stream()
    torch.cuda.synchronize()
    buffer.copy_(there, non_blocking=True)
    with torch.cuda.stream(side):
        back = buffer.to("cuda", non_blocking=True)
    side.wait_stream(torch.cuda.default_stream())
    with torch.cuda.stream(side):
        back = buffer.to("cuda", non_blocking=True)
    assert errors(session) == ["unsynchronized-access"]
    assert back.shape == (4,)


def test_a_hook_of_backward_that_chooses_a_stream_must_wait_for_the_gradient(session: Session) -> None:
    side = torch.cuda.Stream()
    w = torch.randn(64, 64, device="cuda", requires_grad=True)
    total = torch.zeros(64, 64, device="cuda")
    torch.cuda.synchronize()

    def reduce(parameter: torch.Tensor, wait: bool) -> None:
        if wait:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            total.add_(parameter.grad)

    for wait, expected in ((True, []), (False, ["unsynchronized-access"])):
        hook = w.register_post_accumulate_grad_hook(lambda parameter, wait=wait: reduce(parameter, wait))
        (torch.ones(8, 64, device="cuda") @ w).sum().backward()
        torch.cuda.synchronize()
        hook.remove()
        w.grad = None
        assert errors(session) == expected


def test_waiting_before_the_source_is_written_is_right(session: Session) -> None:
    source = torch.ones(4).pin_memory()
    there = source.to("cuda", non_blocking=True)
    torch.cuda.current_stream().synchronize()
    source.fill_(9.0)
    assert there.tolist() == [1.0] * 4
    assert errors(session) == []


def test_copies_land_by_the_clock_when_asked() -> None:
    with windtunnel.emulate("V100", async_copies="clock"):
        host = torch.zeros(4, pin_memory=True)
        host.copy_(torch.full((4,), 3.0, device="cuda"), non_blocking=True)
        time.sleep(1)
        assert host.tolist() == [3.0] * 4


def test_a_synchronization_that_is_not_wanted_warns_or_raises(session: Session) -> None:
    x = torch.ones(2, device="cuda")
    with pytest.warns(UserWarning, match="is a prototype feature"):
        torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x.sum().item()
        torch.cuda.current_stream().synchronize()
        torch.cuda.synchronize()
    assert [str(warning.message) for warning in caught] == ["called a synchronizing CUDA operation"] * 2
    assert {os.path.basename(warning.filename) for warning in caught} == {"test_streams.py"}
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        x.nonzero()
    torch.cuda.set_sync_debug_mode("default")


def test_polling_for_something_outside_takes_about_as_long_as_it_does(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    begin, real = time.monotonic(), time.clock_gettime(time.CLOCK_MONOTONIC)
    threading.Timer(0.5, path.touch).start()  # as another process lets go of its lock
    while not path.exists():
        time.sleep(0.01)
    waited = time.clock_gettime(time.CLOCK_MONOTONIC) - real
    assert 0.5 < time.monotonic() - begin < 1.01 + 2 * waited


def test_sleep_takes_modelled_time(session: Session) -> None:
    real = time.monotonic
    begin = time.time()
    time.sleep(100)
    assert 100 <= time.time() - begin < 101
    assert real is time.monotonic


def test_running_statistics_are_written(session: Session) -> None:
    norm = torch.nn.BatchNorm1d(4).cuda()
    x = torch.randn(8, 4, device="cuda")
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        norm(x)
    norm.running_mean.sum()
    assert "unsynchronized-access" in errors(session)


def test_views_made_in_place_launch_nothing(session: Session) -> None:
    x = torch.ones(2, 3, device="cuda")
    before = len(session.trace)
    x.transpose_(0, 1).unsqueeze_(0).squeeze_().t_()
    assert len(session.trace) == before


def races(session: Session) -> list[tuple[str, int, int]]:
    """The hazards: code, and the lines of both accesses counted from the test's `begin`."""
    return [(hazard.code, hazard.first.line, hazard.second.line) for hazard in session.trace.hazards]


def here() -> int:
    """The line of the caller."""
    return sys._getframe(1).f_lineno


def test_the_line_of_a_write_before_the_first_stream_is_known(session: Session) -> None:
    A = torch.empty((100, 100), device="cuda").normal_(0.0, 1.0)
    line = here()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.sum(A)
    assert races(session) == [("unsynchronized-access", line - 1, line + 2)]


def test_a_read_before_the_first_stream_races_with_a_write_on_it(session: Session) -> None:
    x = torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    y = x * 2
    line = here()
    with torch.cuda.stream(torch.cuda.Stream()):
        x.add_(1)
    del y
    assert races(session) == [("unsynchronized-access", line - 1, line + 2)]


def test_columns_on_two_streams_are_no_race_and_the_same_column_is_one(session: Session) -> None:
    x = torch.zeros(64, 64, device="cuda")
    torch.cuda.synchronize()
    x[:, 0].add_(1)
    with torch.cuda.stream(torch.cuda.Stream()):
        x[:, 1].add_(1)
        x.t()[2:].mul_(2)
        assert races(session) == []
        x[:1].mul_(2)
    assert [code for code, _, _ in races(session)] == ["unsynchronized-access"]


def test_a_wait_of_the_host_lets_the_history_before_the_first_stream_begin_anew(session: Session) -> None:
    x = torch.zeros(1000, device="cuda")
    for _ in range(3000):
        x.add_(1)
    torch.cuda.synchronize()
    x[:10].add_(1)
    line = here()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x[10:].add_(1)
        assert races(session) == []
        x.sum()
    assert races(session) == [("unsynchronized-access", line - 1, line + 5)]


def test_beyond_what_is_watched_a_write_is_known_without_its_line(session: Session) -> None:
    x = torch.zeros(1000, device="cuda")
    for _ in range(3000):
        x.add_(1)
    line = here()
    with torch.cuda.stream(torch.cuda.Stream()):
        x.sum()
    assert races(session) == [("unsynchronized-access", 0, line + 2)]


def made_in_reused_memory() -> torch.Tensor:
    return torch.ones(1000, device="cuda").mul(2)


def written_in_a_list() -> torch.Tensor:
    tensors = [torch.zeros(1000, device="cuda") for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(2):  # the second one is known in its form
        torch._foreach_add_(tensors, 1)
    return tensors[1]


def written_as_out() -> torch.Tensor:
    out = torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    torch.add(out, 1, out=out)
    return out


def written_as_statistics() -> torch.Tensor:
    norm = nn.BatchNorm1d(1000, device="cuda", track_running_stats=True)
    examples = torch.ones(4, 1000, device="cuda")
    torch.cuda.synchronize()
    nn.functional.batch_norm(examples, norm.running_mean, norm.running_var, training=True)
    return norm.running_mean


@pytest.mark.parametrize("made", [made_in_reused_memory, written_in_a_list, written_as_out, written_as_statistics])
def test_beyond_what_is_watched_each_kind_of_write_is_known(made: Callable[[], torch.Tensor], session: Session) -> None:
    for _ in range(120):  # until no more may be watched
        for _ in range(10):
            torch.ones(1000, device="cuda").mul(2)
        torch.cuda.synchronize()
    result = made()
    line = here()
    with torch.cuda.stream(torch.cuda.Stream()):
        result.sum()
    assert races(session) == [("unsynchronized-access", 0, line + 2)]


@pytest.mark.parametrize("training", [False, True])
def test_running_statistics_are_written_in_training_alone(training: bool, session: Session) -> None:
    norm = nn.BatchNorm1d(8, device="cuda").train(training)
    batches = [torch.ones(4, 8, device="cuda") for _ in range(2)]
    torch.cuda.synchronize()
    with torch.no_grad():
        for batch in batches:
            with torch.cuda.stream(torch.cuda.Stream()):
                norm(batch)
    assert bool(races(session)) is training


def test_what_an_operator_gives_back_of_its_argument_is_not_written(session: Session) -> None:
    x = torch.zeros(4, 4, device="cuda")
    torch.cuda.synchronize()
    torch.nn.functional.dropout(x, 0.0, training=False)
    with torch.cuda.stream(torch.cuda.Stream()):
        x.sum()
    assert races(session) == []


def test_two_threads_wait_for_two_devices_at_once(session: Session) -> None:
    """PyTorch's own `test_stream_event_nogil`: what both wait together is little more than what one waits."""
    cycles = 50_000_000

    def wait() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(cycles)
        end.record()
        torch.cuda.current_stream().synchronize()
        return begin.elapsed_time(end)

    ready, go, waited = (queue.Queue[float]() for _ in range(3))

    def child() -> None:
        with torch.cuda.device(1):
            ready.put(0)
            go.get()
            waited.put(wait())

    thread = threading.Thread(target=child)
    thread.start()
    ready.get()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    go.put(0)
    times = [wait(), waited.get()]
    end.record()
    end.synchronize()
    thread.join()
    assert max(times) <= begin.elapsed_time(end) < 1.05 * max(times)


def test_small_copies_cost_the_host_less_where_it_does_not_wait_for_each(session: Session) -> None:
    tensors = [torch.ones(1000) for _ in range(200)]
    [tensor.to("cuda") for tensor in tensors]
    seconds = []
    for late in (False, True):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        [tensor.to("cuda", non_blocking=late) for tensor in tensors]
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    blocking, late_copies = seconds
    assert late_copies < 0.8 * blocking


def test_a_kernel_that_only_waits_leaves_the_device_to_others() -> None:
    with windtunnel.emulate("V100") as session:
        x = torch.empty(1024, 4096, device="cuda")
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(10**9)
        x.fill_(1.0)  # as many blocks as the device takes
        torch.cuda.current_stream().synchronize()
        assert not side.query()
        rows = {record.signature.name: record for record in session.trace if record.kind == Kind.KERNEL}
    assert rows["aten::fill_"].end_ns < rows["spin_kernel"].end_ns
