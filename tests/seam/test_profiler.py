"""`torch.profiler` with CUDA activity: device times are the machine's."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections import Counter
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule, tensorboard_trace_handler
from torch.profiler._memory_profiler import _CATEGORY_TO_INDEX, Category

import windtunnel
from windtunnel.seam.torch.profiler.chrome import Exact, Writer
from windtunnel.seam.torch.profiler.tree import name_of
from windtunnel.session import Session
from windtunnel.trace.operation import Kind

BOTH = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
BIG = 2048
MM = "gemm_kernel<aten::mm>"
USE_CUDA = "use_cuda" in signature(torch.autograd.profiler.profile).parameters
"""An option that torch 2.14 has no more."""


def squares(times: int = 1) -> None:
    x = torch.ones(BIG, BIG, device="cuda")
    for _ in range(times):
        x @ x


def product_us(session: Session) -> int:
    """What one of the products takes on the machine, in whole microseconds."""
    return max(record.duration_ns for record in session.trace if record.signature.name == "aten::mm") // 1000


def row(prof: Any, name: str, device: Any = DeviceType.CPU) -> Any:
    return next(e for e in prof.key_averages() if e.key == name and e.device_type == device)


def exported(prof: Any, path: Path) -> list[dict[str, Any]]:
    prof.export_chrome_trace(str(path))
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def test_cuda_is_an_activity(session: Session) -> None:
    assert torch.profiler.supported_activities() >= set(BOTH)


def test_device_times_are_those_of_cuda_events(session: Session) -> None:
    squares()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with profile(activities=BOTH) as prof:
        torch.cuda.synchronize()
        x = torch.ones(BIG, BIG, device="cuda")
        start.record()
        x @ x
        end.record()
    product = row(prof, "aten::mm")
    assert product.self_device_time_total == pytest.approx(start.elapsed_time(end) * 1000, rel=0.05)
    assert row(prof, "aten::matmul").device_time_total == product.device_time_total
    assert row(prof, MM, DeviceType.CUDA).self_device_time_total == product.self_device_time_total


def test_the_host_spends_modelled_time(session: Session) -> None:
    squares()
    with profile(activities=BOTH) as prof:
        for _ in range(3):
            torch.zeros(1, device="cuda").add_(1)
        torch.cuda._sleep(10_000_000)
        torch.cuda.synchronize()
    assert row(prof, "aten::add_").count == 3
    assert 1 < row(prof, "aten::add_").cpu_time < 50  # µs: a launch on real hardware, not an emulated one
    assert row(prof, "cudaDeviceSynchronize").cpu_time_total > 5_000


def test_the_emulation_does_not_show(session: Session, tmp_path: Path) -> None:
    with profile(activities=BOTH, with_stack=True, profile_memory=True) as prof:
        squares()
    names = Counter(event.name for event in prof.events() if event.device_type == DeviceType.CPU)
    assert names["aten::mm"] == names["aten::matmul"] == 1
    assert not any("windtunnel" in name for name in names)
    python = [e["name"] for e in exported(prof, tmp_path / "trace.json") if e.get("cat") == "python_function"]
    assert any("test_profiler.py" in name for name in python)
    assert not any("windtunnel" in name for name in python)


def test_the_table_shows_cuda_times(session: Session) -> None:
    with profile(activities=BOTH, record_shapes=True, with_flops=True) as prof:
        squares(2)
    table = prof.key_averages(group_by_input_shape=True).table(sort_by="self_device_time_total", row_limit=5)
    assert "Self CUDA" in table
    total_ns = sum(record.duration_ns for record in session.trace if record.kind == Kind.KERNEL)
    assert f"Self CUDA time total: {total_ns / 1e6:.3f}ms" in table
    assert f"[[{BIG}, {BIG}], [{BIG}, {BIG}]]" in table
    assert "GFLOPs" in table


def test_ranges_show_on_the_host_and_on_the_device(session: Session) -> None:
    with profile(activities=BOTH) as prof, record_function("forward"):
        squares()
    host, device = row(prof, "forward"), row(prof, "forward", DeviceType.CUDA)
    assert host.device_time_total == row(prof, "aten::mm").device_time_total + row(prof, "aten::ones").device_time_total
    assert device.is_user_annotation
    assert device.self_device_time_total >= product_us(session)


def test_backward_operators_carry_their_kernels(session: Session) -> None:
    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    with profile(activities=BOTH) as prof:
        (x @ x).sum().backward()
    node = row(prof, "autograd::engine::evaluate_function: MmBackward0")
    assert node.device_time_total > 0


def test_memory_of_devices_and_of_the_host(session: Session) -> None:
    with profile(activities=BOTH, profile_memory=True) as prof:
        x = torch.ones(1000, device="cuda")
        torch.cuda.synchronize()  # torch 2.6 looks for memory at rounded times
        y = torch.ones(1000)
        torch.cuda.synchronize()
        x + x
    assert row(prof, "aten::ones").device_memory_usage == 4096
    kineto = prof.profiler.kineto_results
    assert [event.nbytes() for event in kineto.events() if event.name() == "[memory]"] == [4096, 4000, 4096, -4096]
    assert y.device.type == "cpu"


def test_the_exported_trace_has_kernels_copies_and_arrows(session: Session, tmp_path: Path) -> None:
    with profile(activities=BOTH, profile_memory=True) as prof:
        squares()
        torch.ones(10).cuda(1).cpu()
    events = exported(prof, tmp_path / "trace.json")
    found = Counter(event.get("cat") for event in events)
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert [kernel["name"] for kernel in kernels] == ["kernel<aten::ones>", MM]
    assert found["gpu_memcpy"] == 2
    assert found["ac2g"] == 2 * (2 + 2)
    assert {event["name"] for event in events if event.get("cat") == "cuda_runtime"} >= {
        "cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaDeviceSynchronize",
    }  # fmt: skip
    operator = next(e for e in events if e.get("cat") == "cpu_op" and e["name"] == "aten::mm")
    call = next(
        e
        for e in events
        if e.get("cat") == "cuda_runtime" and e["args"]["External id"] == operator["args"]["External id"]
    )
    assert operator["ts"] <= call["ts"]
    assert call["ts"] + call["dur"] <= operator["ts"] + operator["dur"] + 0.01
    assert call["args"]["correlation"] == kernels[1]["args"]["correlation"]
    memory = [event["args"] for event in events if event["name"] == "[memory]" and event["args"]["Device Type"] == 1]
    assert memory[0]["Bytes"] == BIG * BIG * 4 == memory[0]["Total Allocated"]


def test_a_schedule_writes_a_trace_a_cycle(session: Session, tmp_path: Path) -> None:
    handler = tensorboard_trace_handler(str(tmp_path), worker_name="w")
    with profile(
        activities=BOTH, schedule=schedule(wait=1, warmup=1, active=2, repeat=2), on_trace_ready=handler
    ) as prof:
        for _ in range(8):
            squares()
            prof.step()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    for file in files:
        events = json.loads(file.read_text())["traceEvents"]
        assert sum(event.get("cat") == "kernel" and event["name"] == MM for event in events) == 2
        assert (
            sum(event["name"].startswith("ProfilerStep#") and event["cat"] == "user_annotation" for event in events)
            == 2
        )


def test_device_work_alone(session: Session) -> None:
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        squares()
    names = {event.name for event in prof.events() if event.device_type == DeviceType.CPU}
    assert names <= {"cudaLaunchKernel", "cudaDeviceSynchronize"}
    assert row(prof, MM, DeviceType.CUDA).count == 1


def test_collection_can_be_switched(session: Session) -> None:
    with profile(activities=BOTH) as prof:
        squares()
        prof.toggle_collection_dynamic(False, [ProfilerActivity.CUDA])
        squares()
        prof.toggle_collection_dynamic(True, [ProfilerActivity.CUDA])
        squares()
    assert row(prof, "aten::mm").count == 3
    assert row(prof, MM, DeviceType.CUDA).count == 2


def test_the_older_profiler_times_operators_by_events(session: Session) -> None:
    with torch.autograd.profiler.profile(use_device="cuda") as prof:
        squares()
    taken = row(prof, "aten::matmul").device_time_total
    assert product_us(session) <= taken < product_us(session) + 20


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_older_profilers_option(session: Session) -> None:
    option: Any = {"use_cuda": True} if USE_CUDA else {"use_device": "cuda"}
    with torch.autograd.profiler.profile(**option) as prof:
        squares()
    assert product_us(session) <= row(prof, "aten::mm").device_time_total < product_us(session) + 20


def test_nvtx_ranges_and_the_external_profiler(session: Session) -> None:
    with torch.cuda.profiler.profile(), torch.autograd.profiler.emit_nvtx(record_shapes=True) as emitted:
        squares()
    assert emitted is not None
    torch.cuda.profiler.start()
    torch.cuda.profiler.stop()
    with torch.cuda.nvtx.range("step {}", 1):
        assert torch.cuda.nvtx.range_push("inner") == 1
        assert torch.cuda.nvtx.range_pop() == 1


def test_work_on_the_host_alone_keeps_the_profilers_own_times(session: Session) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        torch.ones(300, 300) @ torch.ones(300, 300)
    assert row(prof, "aten::mm").count == 1
    assert row(prof, "aten::mm").cpu_time_total > 10


def test_nothing_of_it_stays() -> None:
    names = vars(torch.autograd.profiler)
    before = names["_enable_profiler"], names["_supported_activities"]
    with windtunnel.emulate("V100") as session, profile(activities=BOTH):
        squares()
        machine = session.machine
    assert (names["_enable_profiler"], names["_supported_activities"]) == before
    assert "launch" not in vars(machine)


def test_moments_of_the_hosts_file_are_exact_to_the_nanosecond() -> None:
    writer = Writer.__new__(Writer)
    writer.base_ns = 0
    first = 4483341874276000
    for ns in range(first, first + 1000):
        assert writer.real({"ts": json.loads(f"{ns // 1000}.{ns % 1000:03}", parse_float=Exact)}) == ns


def test_a_memory_timeline_has_what_a_gpu_held(session: Session, tmp_path: Path) -> None:
    before = torch.ones(1 << 20, device="cuda")
    with profile(activities=BOTH, record_shapes=True, profile_memory=True, with_stack=True) as prof:
        made = torch.zeros(1 << 18, device="cuda")
        made.add_(1)
        del before
        del made
    path = tmp_path / "memory.json"
    prof.export_memory_timeline(str(path), device="cuda:0")
    _, sizes = json.loads(path.read_text())
    assert max(map(sum, sizes)) == 5 << 20
    assert sum(sizes[-1]) == 0


def test_a_memory_timeline_knows_what_memory_is_for(session: Session, tmp_path: Path) -> None:
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with profile(activities=BOTH, record_shapes=True, profile_memory=True, with_stack=True) as prof:
        step()
    prof.export_memory_timeline(str(tmp_path / "memory.json"), device="cuda:0")
    prof.export_memory_timeline(str(tmp_path / "memory.html"), device="cuda:0")
    assert "data:image/png;base64," in (tmp_path / "memory.html").read_text()
    _, sizes = json.loads((tmp_path / "memory.json").read_text())
    parameters, states, gradients = (
        1 + _CATEGORY_TO_INDEX[kind] for kind in (Category.PARAMETER, Category.OPTIMIZER_STATE, Category.GRADIENT)
    )
    size = 4 * (64 * 64 + 64)
    assert {(row[parameters], row[states]) for row in sizes} == {(size, 2 * size)}
    assert max(row[gradients] for row in sizes) >= size


def tree(prof: Any) -> list[Any]:
    found: list[Any] = prof.profiler.kineto_results.experimental_event_tree()
    return found


def named(nodes: list[Any], name: str) -> Any:
    """The first event of that name, parents before their children."""
    for node in nodes:
        below = node if name_of(node) == name else named(node.children, name)
        if below is not None:
            return below
    return None


def names_of(nodes: list[Any]) -> list[str]:
    return [name for node in nodes for name in (node.name, *names_of(node.children))]


def test_the_tree_of_events_is_the_programs(session: Session) -> None:
    x = torch.ones(8, device="cuda")
    with profile(activities=BOTH, record_shapes=True, profile_memory=True, with_stack=True) as prof:
        made = torch.zeros(1000, device="cuda")
        x.add_(1)
        made.cpu()
    said = names_of(tree(prof))
    assert not any(name.startswith("windtunnel") or "find_torch_dispatch_rule" in name for name in said)
    zeros = named(tree(prof), "aten::zeros")
    assert [child.name for child in zeros.children] == ["aten::empty", "aten::zero_"]
    assert zeros.parent.name.startswith("<built-in method zeros")
    (memory,) = zeros.children[0].children
    assert (memory.extra_fields.device, memory.extra_fields.alloc_size) == (torch.device("cuda:0"), 4096)
    assert memory.extra_fields.id == zeros.children[1].extra_fields.inputs[0].id
    assert memory.extra_fields.total_allocated == 4096 + 512
    assert zeros.start_time_ns <= memory.start_time_ns <= zeros.end_time_ns
    assert named(tree(prof), "aten::add_").extra_fields.inputs[0].device == torch.device("cuda:0")
    copied = named(tree(prof), "aten::to")
    assert copied.parent.name.startswith("<built-in method cpu")
    assert names_of(copied.children) == ["aten::_to_copy", "aten::empty_strided", "[memory]", "aten::copy_"]


def test_an_item_is_set_without_a_call(session: Session) -> None:
    """Python's profiler hears nothing of an instruction, and so patterns such as ForLoopIndexingPattern are found."""
    x = torch.ones(8, 8, device="cuda")
    with profile(activities=BOTH, record_shapes=True, with_stack=True) as prof:
        for i in range(8):
            x[i] = i
    parent = named(tree(prof), "aten::select").parent
    assert "test_an_item_is_set_without_a_call" in parent.name
    assert [name for name in map(name_of, parent.children) if name == "aten::select"] == ["aten::select"] * 8


def assert_given_back_once(prof: profile) -> None:
    assert row(prof, "gives back").device_memory_usage == -4096
    (memory,) = [node for node in named(tree(prof), "gives back").children if node.name == "[memory]"]
    assert (memory.extra_fields.alloc_size, memory.extra_fields.total_allocated) == (-4096, 0)


def test_memory_of_before_the_window_that_is_given_back(session: Session, tmp_path: Path) -> None:
    gc.collect()  # what other tests left is not given back in the window
    before = torch.ones(1000, device="cuda")
    with profile(activities=BOTH, profile_memory=True) as prof, record_function("gives back"):
        del before
    assert_given_back_once(prof)
    (event,) = [event for event in exported(prof, tmp_path / "trace.json") if event["name"] == "[memory]"]
    assert (event["args"]["Bytes"], event["args"]["Total Allocated"]) == (-4096, 0)


def test_memory_of_an_earlier_window_is_given_back_once(session: Session) -> None:
    # PyTorch remembers an earlier window's pointers and says their end as well
    gc.collect()
    with profile(activities=BOTH, profile_memory=True):
        before = torch.ones(1000, device="cuda")
    with profile(activities=BOTH, profile_memory=True) as prof, record_function("gives back"):
        del before
    assert_given_back_once(prof)


def test_threads_of_the_program_are_in_the_tree(session: Session) -> None:
    begin, end = threading.Barrier(2, timeout=20), threading.Barrier(2, timeout=20)

    def in_a_thread() -> None:
        begin.wait()
        torch.ones(1, device="cuda")
        end.wait()

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    with profile(activities=BOTH, with_stack=True) as prof:
        begin.wait()
        end.wait()
    thread.join()
    assert any("in_a_thread" in name for name in names_of(tree(prof)))


def test_a_sleep_lies_where_the_program_slept(session: Session) -> None:
    with profile(activities=BOTH) as prof:
        with record_function("slept"):
            time.sleep(2)
        torch.ones(1, device="cuda")
    assert 2_000_000 <= row(prof, "slept").cpu_time_total < 2_001_000


def test_the_file_has_waits_and_requests_that_failed(session: Session, tmp_path: Path) -> None:
    config = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    with profile(activities=BOTH, profile_memory=True, experimental_config=config) as prof:
        torch.ones(8, device="cuda")
        torch.cuda.synchronize()
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(1 << 45, device="cuda")
    events = exported(prof, tmp_path / "trace.json")
    assert "Context Sync" in [event["name"] for event in events if event.get("cat") == "cuda_sync"]
    (failed,) = [event for event in events if event["name"] == "[OutOfMemory]"]
    assert failed["args"]["Bytes"] == 1 << 47
    assert events[-1]["name"] == "Record Window End"
    window = next(event for event in events if event.get("cat") == "Trace")
    assert all(window["ts"] <= event["ts"] for event in events)
