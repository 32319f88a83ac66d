"""Asynchronous execution: streams, events, timing, late copies, pinned memory (items 69 to 79, 99 to 101)."""

import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import windtunnel
from helpers.findings import codes
from windtunnel import gpus
from windtunnel.trace.operation import Kind

MIB = 2**20


def kernels(session, name):
    """The kernels whose name contains `name`, in order."""
    return [record for record in session.trace if record.kind == Kind.KERNEL and name in record.signature.name]


def multiply(times=4):
    """Keep the current stream busy for some tenths of a millisecond."""
    matrix = torch.ones(1024, 1024, device="cuda")
    for _ in range(times):
        product = matrix @ matrix
    return product


# mission 69
def test_the_host_runs_ahead_of_the_device(session):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    multiply(1)
    torch.cuda.synchronize()
    start.record()
    before = time.perf_counter()
    multiply()
    host_ms = (time.perf_counter() - before) * 1e3
    end.record()
    assert not end.query()
    end.synchronize()
    assert end.query()
    assert host_ms < start.elapsed_time(end) / 2


# mission 69
def test_each_device_has_its_own_queue(session):
    left, right = torch.ones(1024, 1024, device="cuda:0"), torch.ones(1024, 1024, device="cuda:1")
    left @ left
    right @ right
    first, second = kernels(session, "mm")
    assert (first.lane.device, second.lane.device) == (0, 1)
    assert second.start_ns < first.end_ns


# mission 70
def test_a_device_keeps_the_order_and_copies_wait(session):
    x = torch.zeros(1 * MIB, device="cuda")
    for step in range(5):
        x.mul_(2).add_(step)
    value = x.cpu()[0].item()
    assert value == 26.0
    records = [record for record in session.trace if record.lane.device == 0 and record.lane.stream == 0]
    work = [record for record in records if record.kind in (Kind.KERNEL, Kind.COPY)]
    assert all(later.start_ns >= earlier.end_ns for earlier, later in pairwise(work))
    assert torch.cuda.current_stream().query()
    assert "unsynchronized-access" not in codes(session)


# mission 71
def test_launch_blocking_makes_the_host_wait(monkeypatch):
    hosts = []
    for blocking in ("0", "1"):
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
        with windtunnel.emulate("V100"):
            multiply(1)
            torch.cuda.synchronize()
            before = time.perf_counter()
            multiply()
            hosts.append(time.perf_counter() - before)
            assert torch.cuda.current_stream().query() is (blocking == "1")
    assert hosts[1] > 2 * hosts[0]


# mission 72
@pytest.mark.parametrize("blocking", ["0", "1"])
def test_a_kernels_error_surfaces_at_the_next_synchronization(blocking, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
    with windtunnel.emulate("V100"):
        x, index = torch.zeros(3, device="cuda"), torch.tensor([5], device="cuda")
        reached = []

        def program():
            x[index]
            reached.append("the line after the error")
            torch.cuda.synchronize()
            reached.append("the line after the synchronization")

        with pytest.raises(RuntimeError, match="CUDA error: device-side assert triggered"):
            program()
        assert reached == (["the line after the error"] if blocking == "0" else [])
        with pytest.raises(RuntimeError, match="CUDA error: device-side assert triggered"):
            torch.ones(1, device="cuda").item()


# mission 72
def test_the_report_names_the_request_that_the_stack_trace_does_not_show(session):
    logits, targets = torch.randn(4, 10, device="cuda"), torch.tensor([1, 5, 10, 2], device="cuda")
    asked = test_the_report_names_the_request_that_the_stack_trace_does_not_show.__code__.co_firstlineno + 3
    loss = torch.nn.functional.cross_entropy(logits, targets)
    doubled = loss * 2
    with pytest.raises(RuntimeError, match="device-side assert triggered"):
        doubled.item()
    (finding,) = [finding for finding in session.findings() if finding.code == "device-assert"]
    assert finding.site.line == asked


# mission 73
def test_timing_without_synchronization_is_wrong_and_with_it_right(session):
    multiply(1)
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before = time.perf_counter()
    start.record()
    multiply()
    end.record()
    wrong_ms = (time.perf_counter() - before) * 1e3
    torch.cuda.synchronize()
    right_ms = (time.perf_counter() - before) * 1e3
    events_ms = start.elapsed_time(end)
    assert wrong_ms < events_ms / 2
    assert right_ms == pytest.approx(events_ms, rel=0.25)


# mission 73
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_events_time_a_product_as_the_peaks_of_the_gpus_are(dtype):
    def milliseconds(gpu):
        with windtunnel.emulate(gpu, no_data=True):
            matrix = torch.ones(8192, 8192, device="cuda", dtype=dtype)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            matrix @ matrix
            start.record()
            matrix @ matrix
            end.record()
            torch.cuda.synchronize()
            return start.elapsed_time(end)

    kind = {torch.float32: "fp32", torch.float16: "fp16"}[dtype]
    peaks = [gpus.find(name).peak_flops[kind] for name in ("V100", "H100")]
    assert milliseconds("V100") / milliseconds("H100") == pytest.approx(peaks[1] / peaks[0], rel=0.2)


# mission 73
def test_elapsed_time_asks_for_timing_and_for_completion(session):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    multiply()
    end.record()
    with pytest.raises(RuntimeError, match="completed"):
        start.elapsed_time(end)
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 0
    untimed = torch.cuda.Event()
    untimed.record()
    with pytest.raises((RuntimeError, ValueError), match="enable_timing=True"):
        untimed.elapsed_time(end)


# mission 74
def test_a_non_blocking_copy_read_too_early_is_stale(session):
    source = torch.full((MIB,), 3.0, device="cuda")
    host = torch.zeros(MIB, pin_memory=True)
    multiply()
    host.copy_(source, non_blocking=True)
    assert (host[0].item(), host.sum().item()) == (0.0, 0.0)
    torch.cuda.synchronize()
    assert (host[0].item(), host.sum().item()) == (3.0, 3.0 * MIB)
    assert "stale-read" in codes(session)


# mission 74
def test_to_cpu_non_blocking_is_late_and_right_after_synchronizing(session):
    source = torch.full((MIB,), 3.0, device="cuda")
    multiply()
    host = source.to("cpu", non_blocking=True)
    assert host.is_pinned()
    torch.cuda.synchronize()
    assert torch.equal(host, torch.full((MIB,), 3.0))
    assert "stale-read" not in codes(session)


# mission 74
def test_a_blocking_copy_is_never_stale(session):
    host = torch.zeros(MIB, pin_memory=True)
    host.copy_(torch.full((MIB,), 3.0, device="cuda"))
    assert host.sum().item() == 3.0 * MIB
    assert "stale-read" not in codes(session)


# mission 75, 76
def test_each_device_has_a_default_stream(session):
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.default_stream(0) != torch.cuda.default_stream(1)
    assert torch.cuda.default_stream(1).device == torch.device("cuda", 1)
    side = torch.cuda.Stream()
    assert side != torch.cuda.default_stream()
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    other = torch.cuda.Stream(device=1)
    with torch.cuda.stream(other):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0


# mission 77
@pytest.mark.parametrize("order", ["none", "wait_stream", "event", "synchronize"])
def test_streams_are_unordered_unless_told(order, session):
    side = torch.cuda.Stream()
    multiply()
    if order == "wait_stream":
        side.wait_stream(torch.cuda.current_stream())
    elif order == "event":
        side.wait_event(torch.cuda.current_stream().record_event())
    elif order == "synchronize":
        torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.empty(8, device="cuda").normal_()
    products, (normal,) = kernels(session, "mm"), kernels(session, "normal")
    assert normal.lane.stream != products[-1].lane.stream
    assert (normal.start_ns >= products[-1].end_ns) is (order != "none")


# mission 78
def test_the_incorrect_stream_program_is_found(session):
    cuda = torch.device("cuda")
    s = torch.cuda.Stream()
    A = torch.empty((100, 100), device=cuda).normal_(0.0, 1.0)
    with torch.cuda.stream(s):
        torch.sum(A)
    (finding,) = [finding for finding in session.findings() if finding.code == "unsynchronized-access"]
    assert Path(finding.site.file).name == Path(finding.other.file).name == Path(__file__).name
    assert finding.site.line == finding.other.line + 2


# mission 78
def test_in_the_incorrect_stream_program_the_sum_starts_before_what_it_sums_is_there(session):
    s = torch.cuda.Stream()
    multiply()
    A = torch.empty((100, 100), device="cuda").normal_(0.0, 1.0)
    with torch.cuda.stream(s):
        torch.sum(A)
    (normal,), (total,) = kernels(session, "normal"), kernels(session, "aten::sum")
    assert total.end_ns < normal.start_ns


# mission 78
def test_the_incorrect_stream_program_can_print_the_wrong_number():
    with windtunnel.emulate("V100", async_copies="stale"):
        s = torch.cuda.Stream()
        A = torch.empty((100, 100), device="cuda").normal_(0.0, 1.0)
        with torch.cuda.stream(s):
            B = torch.sum(A)
        torch.cuda.synchronize()
        assert B.item() != pytest.approx(A.sum().item())


# mission 78
@pytest.mark.parametrize("correction", ["wait_stream", "synchronize"])
def test_the_corrected_stream_program_is_not(correction, session):
    s = torch.cuda.Stream()
    A = torch.empty((100, 100), device="cuda").normal_(0.0, 1.0)
    if correction == "wait_stream":
        s.wait_stream(torch.cuda.current_stream())
    else:
        torch.cuda.current_stream().synchronize()
    with torch.cuda.stream(s):
        B = torch.sum(A)
    torch.cuda.current_stream().wait_stream(s)
    assert B.item() == pytest.approx(A.sum().item())
    assert "unsynchronized-access" not in codes(session)


# mission 79
def test_copies_on_the_default_stream_do_not_wait_for_side_streams(session):
    """A copy on the default stream is ordered after the default stream's work; the rest is the user's duty."""
    x = torch.zeros(MIB, device="cuda")
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        multiply()
        x.fill_(1)
    x.cpu()
    assert "unsynchronized-access" in codes(session)


# mission 99
def test_pinned_memory_is_a_copy_on_tensors_and_storages(session):
    x = torch.arange(4.0)
    pinned = x.pin_memory()
    assert (x.is_pinned(), pinned.is_pinned()) == (False, True)
    assert pinned.data_ptr() != x.data_ptr()
    assert torch.equal(pinned, x)
    assert pinned.pin_memory() is pinned
    storage = x.untyped_storage()
    assert not storage.is_pinned()
    assert storage.pin_memory().is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        x.cuda().pin_memory()


# mission 99
@pytest.mark.parametrize("direction", ["to the device", "to the host"])
def test_pinned_memory_copies_much_faster(direction, session):
    def milliseconds(pinned):
        host = torch.zeros(16 * MIB, dtype=torch.uint8, pin_memory=pinned)
        device = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        before = time.perf_counter()
        if direction == "to the device":
            device.copy_(host)
        else:
            host.copy_(device)
        torch.cuda.synchronize()
        return (time.perf_counter() - before) * 1e3

    pageable, pinned = milliseconds(pinned=False), milliseconds(pinned=True)
    assert pageable > 1.5 * pinned
    assert 16 * MIB / (pinned * 1e-3) < 15.75e9  # PCIe 3.0 x16, one direction


# mission 100
def test_pinned_non_blocking_copies_overlap_the_host_and_kernels(session):
    host = torch.zeros(16 * MIB, dtype=torch.uint8, pin_memory=True)
    torch.cuda.synchronize()
    before = time.perf_counter()
    host.to("cuda")
    blocking = time.perf_counter() - before
    before = time.perf_counter()
    host.to("cuda", non_blocking=True)
    non_blocking = time.perf_counter() - before
    assert non_blocking < blocking / 5
    torch.cuda.synchronize()
    multiply()
    with torch.cuda.stream(torch.cuda.Stream()):
        host.to("cuda", non_blocking=True)
    *_, copy = [record for record in session.trace if record.kind == Kind.COPY]
    assert copy.start_ns < kernels(session, "mm")[-1].end_ns


# mission 101
@pytest.mark.parametrize("workers", [0, 2])
def test_the_data_loader_returns_pinned_batches(workers, session):
    data = torch.arange(12.0).view(6, 2)
    batches = list(DataLoader(data, batch_size=2, pin_memory=True, num_workers=workers))
    assert all(batch.is_pinned() for batch in batches)
    assert torch.equal(torch.cat([batch.to("cuda", non_blocking=True) for batch in batches]).cpu(), data)
    assert not any(batch.is_pinned() for batch in DataLoader(data, batch_size=2))
