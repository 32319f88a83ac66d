"""Device memory under PyTorch's names: statistics, limits, errors, workspaces, the driver's calls."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator

import pytest
import torch

import windtunnel
from windtunnel.session import Session

cuda = torch.cuda
MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The environment, free of settings for the allocator."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


# ---------------------------------------------------------------------------------------------- sizes


def test_a_square_of_floats(session: Session) -> None:
    x = torch.ones(1024, 1024, device="cuda")
    assert cuda.memory_allocated() == x.nbytes == 4194304
    assert cuda.memory_reserved() == 20 * MIB


def test_a_linear_layer(session: Session) -> None:
    layer = torch.nn.Linear(100, 100).cuda()  # pytorch#76811
    assert cuda.memory_allocated() == 40960
    del layer
    assert cuda.memory_allocated() == 0


def test_a_tiny_tensor_reserves_two_mebibytes(session: Session) -> None:
    x = torch.ones(1, device="cuda")  # pytorch#28394
    assert cuda.memory_allocated() == 512
    assert cuda.memory_reserved() == 2 * MIB
    assert x.data_ptr() % 512 == 0


def test_rounding_by_divisions(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:4")
    with windtunnel.emulate("V100"):
        x = torch.empty(5000, dtype=torch.uint8, device="cuda")
        assert cuda.memory_allocated() == 5120
        assert x.numel() == 5000


def test_the_setter_changes_a_running_allocator(session: Session) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of PyTorch say that it moved
        cuda.memory._set_allocator_settings("roundup_power2_divisions:4")
        x = torch.empty(5000, dtype=torch.uint8, device="cuda")
        assert cuda.memory_allocated() == 5120
        with pytest.raises((ValueError, RuntimeError), match=r"Unrecognized .*nonsense"):
            cuda.memory._set_allocator_settings("nonsense:1")
    assert x.is_cuda


# ---------------------------------------------------------------------------------------------- statistics


def test_peaks_and_their_reset(session: Session) -> None:
    x = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    del x
    assert cuda.memory_allocated() == 0
    assert cuda.max_memory_allocated() == 8 * MIB
    cuda.empty_cache()
    assert cuda.memory_reserved() == 0
    assert cuda.max_memory_reserved() == 20 * MIB
    cuda.reset_peak_memory_stats()
    assert cuda.max_memory_allocated() == cuda.max_memory_reserved() == 0
    cuda.reset_accumulated_memory_stats()
    assert cuda.memory_stats()["allocated_bytes.all.allocated"] == 0


def test_all_keys_of_the_statistics(session: Session) -> None:
    x = torch.ones(10, device="cuda")
    stats = cuda.memory_stats()
    # PyTorch documents it where it has it; torch 2.11 on an H100 has not (make hardware).
    assert ("num_oom_rejections" in stats) == ("num_oom_rejections" in str(cuda.memory_stats.__doc__))
    quantities = ("allocation", "segment", "active", "inactive_split")
    sizes = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")
    for name in (*quantities, *sizes):
        for pool in ("all", "small_pool", "large_pool"):
            for metric in ("current", "peak", "allocated", "freed"):
                assert f"{name}.{pool}.{metric}" in stats
    for name in ("num_alloc_retries", "num_ooms", "max_split_size", "num_sync_all_streams", "num_device_alloc"):
        assert name in stats
    assert stats["requested_bytes.all.current"] == x.nbytes == 40
    assert stats["allocated_bytes.small_pool.current"] == 512
    assert stats["segment.all.current"] == stats["num_device_alloc"] == 1
    assert not any("private_pools" in key for key in stats)


def test_each_device_counts_its_own(session: Session) -> None:
    x = torch.ones(1024, 1024, device="cuda:1")
    assert cuda.memory_allocated(0) == 0
    assert cuda.memory_allocated(1) == x.nbytes
    assert "CUDA memory summary, device ID 1" in cuda.memory_summary(1)
    assert "   4096 KiB" in cuda.memory_summary(1)
    assert cuda.memory_summary(1, abbreviated=True).count("\n") < cuda.memory_summary(1).count("\n")


def test_free_memory_is_what_context_and_reservations_leave(session: Session) -> None:
    free, total = cuda.mem_get_info()
    assert total == cuda.get_device_properties(0).total_memory == 16945512448
    context = total - free
    x = torch.ones(1024, 1024, device="cuda")
    assert cuda.mem_get_info() == (total - context - cuda.memory_reserved(), total)
    assert x.is_cuda
    assert context == 300 * MIB


def test_three_views_of_one_gpu(session: Session) -> None:
    """nvidia-smi counts 3 MiB more than the process, the process its context, PyTorch only what it reserved."""
    pynvml = pytest.importorskip("pynvml")
    x = torch.ones(1024, 1024, device="cuda")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    process = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)[0]
    free, total = cuda.mem_get_info()
    assert process.usedGpuMemory == total - free == 320 * MIB
    assert process.pid == os.getpid()
    info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    assert info.used == 323 * MIB
    # The first version of that structure counts what drivers since 510 keep for themselves as used.
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).used == info.used + info.reserved
    assert f"process {os.getpid():>10d} uses      320.000 MB GPU memory" in cuda.list_gpu_processes()
    assert cuda.memory_reserved() == 20 * MIB
    assert cuda.memory_allocated() == x.nbytes


# ---------------------------------------------------------------------------------------------- pinned memory


def test_pinned_memory_comes_in_powers_of_two(session: Session) -> None:
    stats = torch._C._cuda_hostMemoryStats  # torch.cuda.host_memory_stats, which older versions lack, flattens it
    small = torch.ones(10 * 1024, pin_memory=True)
    assert stats()["allocated_bytes"]["current"] == 65536
    large = torch.ones(20 * 1024).pin_memory()
    assert stats()["allocated_bytes"]["current"] == 65536 + 131072
    assert small.is_pinned()
    assert large.is_pinned()
    del small
    again = torch.ones(12 * 1024, pin_memory=True)
    assert again.is_pinned()
    assert stats()["num_host_alloc"] == 2
    assert stats()["host_alloc_time"]["total"] > 0
    torch._C._cuda_resetPeakHostMemoryStats()
    torch._C._cuda_resetAccumulatedHostMemoryStats()
    assert stats()["num_host_alloc"] == 0
    cuda.init()
    if hasattr(cuda, "host_memory_stats"):
        assert cuda.host_memory_stats()["active_bytes.current"] == stats()["active_bytes"]["current"] == 65536 + 131072


# ---------------------------------------------------------------------------------------------- out of memory


def test_out_of_memory_tells_true_numbers(session: Session) -> None:
    kept = torch.empty(10 * GIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(8 * GIB, dtype=torch.uint8, device="cuda")
    free, _ = cuda.mem_get_info()
    text = str(caught.value)
    assert cuda.OutOfMemoryError is torch.OutOfMemoryError
    assert isinstance(caught.value, RuntimeError)
    assert text.startswith("CUDA out of memory. Tried to allocate 8.00 GiB. GPU 0 has a total capacity of 15.78 GiB of")
    assert f"which {free / GIB:.2f} GiB is free" in text
    assert "Of the allocated memory 10.00 GiB is allocated by PyTorch" in text
    stats = cuda.memory_stats()
    assert (stats["num_ooms"], stats["num_alloc_retries"]) == (1, 1)
    assert kept.is_cuda


def test_more_than_any_such_gpu_holds_is_refused_before_the_host_tries(session: Session) -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 4096\.00 GiB"):
        torch.ones(1024, 1024, 1024, 1024, device="cuda")


def test_cached_blocks_are_given_back_before_it_fails(session: Session) -> None:
    x = torch.empty(10 * GIB, dtype=torch.uint8, device="cuda")
    del x
    y = torch.empty(12 * GIB, dtype=torch.uint8, device="cuda")
    stats = cuda.memory_stats()
    assert (stats["num_ooms"], stats["num_alloc_retries"]) == (0, 1)
    assert cuda.memory_reserved() == y.nbytes


def test_observers_hear_of_it_first(session: Session) -> None:
    heard: list[tuple[int, int, int, int]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *facts: heard.append(facts))
    free, total = cuda.mem_get_info(1)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(20 * GIB, dtype=torch.uint8, device="cuda:1")
    assert heard == [(1, 20 * GIB, total, free)]


def test_the_memory_fraction_limits(session: Session) -> None:
    total = cuda.get_device_properties(0).total_memory
    cuda.set_per_process_memory_fraction(0.25)
    if hasattr(cuda, "get_per_process_memory_fraction"):
        assert cuda.get_per_process_memory_fraction() == pytest.approx(0.25)
    with pytest.raises(torch.OutOfMemoryError, match=r"3\.95 GiB allowed"):
        torch.empty(total // 3, dtype=torch.uint8, device="cuda")
    cuda.set_per_process_memory_fraction(1.0)
    assert torch.empty(total // 3, dtype=torch.uint8, device="cuda").is_cuda


# ---------------------------------------------------------------------------------------------- settings


def test_expandable_segments_from_the_environment(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with windtunnel.emulate("V100"):
        x = torch.ones(1024, 1024, device="cuda")
        segment = cuda.memory_snapshot()[0]
        assert segment["is_expandable"]
        assert cuda.memory_reserved() == 20 * MIB
        del x
        cuda.empty_cache()
        assert cuda.memory_reserved() == 0


def test_bad_settings_are_an_error_at_first_use(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segment:True")
    with windtunnel.emulate("V100"):
        assert cuda.device_count() == 1
        for _ in range(2):
            with pytest.raises((ValueError, RuntimeError), match=r"Unrecognized .*expandable_segment"):
                torch.ones(1, device="cuda")


def test_without_caching_each_tensor_is_a_call_of_the_driver(session: Session) -> None:
    before = torch.ones(1024, 1024, device="cuda")
    free, _ = cuda.mem_get_info()
    if hasattr(cuda, "caching_allocator_enable"):
        cuda.caching_allocator_enable(False)
    else:
        torch._C._cuda_cudaCachingAllocator_enable(False)
    x = torch.ones(1024, 1024, device="cuda")
    assert cuda.memory_allocated() == before.nbytes
    assert cuda.mem_get_info()[0] == free - x.nbytes
    del x, before
    assert cuda.mem_get_info()[0] == free
    assert cuda.memory_allocated() == 0
    torch._C._cuda_cudaCachingAllocator_enable(True)
    again = torch.ones(1024, 1024, device="cuda")
    assert cuda.memory_allocated() == again.nbytes


def test_raw_allocations(session: Session) -> None:
    address = cuda.caching_allocator_alloc(1 << 20)
    assert cuda.memory_allocated() == 1 << 20
    cuda.caching_allocator_delete(address)
    assert cuda.memory_allocated() == 0
    stream = cuda.Stream()
    address = cuda.caching_allocator_alloc(100, stream=stream)
    assert any(segment["stream"] != 0 for segment in cuda.memory_snapshot())
    cuda.caching_allocator_delete(address)
    assert cuda.memory.get_allocator_backend() == "native"


# ---------------------------------------------------------------------------------------------- workspaces


@pytest.mark.parametrize(("gpu", "size"), [("V100", 8519680), ("A100", 8519680), ("H100", 32 * MIB)])
def test_the_first_product_takes_a_workspace(environment: pytest.MonkeyPatch, gpu: str, size: int) -> None:
    with windtunnel.emulate(gpu):
        x = torch.ones(16, 16, device="cuda")
        y = x @ x
        assert cuda.memory_allocated() == x.nbytes + y.nbytes + size
        x @ x
        assert cuda.memory_allocated() == x.nbytes + y.nbytes + size
        torch._C._cuda_clearCublasWorkspaces()
        assert cuda.memory_allocated() == x.nbytes + y.nbytes


def test_the_workspace_follows_its_variable(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with windtunnel.emulate("V100"):
        x = torch.ones(16, 16, device="cuda")
        x @ x
        assert cuda.memory_allocated() == 1024 + 32 * MIB


def test_a_variable_that_says_nothing_warns(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("CUBLAS_WORKSPACE_CONFIG", "large")
    with windtunnel.emulate("V100"):
        x = torch.ones(16, 16, device="cuda")
        with pytest.warns(UserWarning, match="Could not parse CUBLAS_WORKSPACE_CONFIG"):
            x @ x


def test_a_plan_of_an_awkward_length_holds_memory_until_it_leaves_the_cache(session: Session) -> None:
    x = torch.ones(16, 1009, dtype=torch.complex64, device="cuda")
    free, _ = cuda.mem_get_info()
    torch.fft.fft(x)
    torch.fft.fft(x)
    held = free - cuda.mem_get_info()[0] - (cuda.memory_reserved() - 2 * MIB)
    assert held == x.nbytes
    torch.backends.cuda.cufft_plan_cache.clear()
    assert cuda.mem_get_info()[0] == free - (cuda.memory_reserved() - 2 * MIB)


# ---------------------------------------------------------------------------------------------- streams and time


def test_record_stream_delays_reuse(session: Session) -> None:
    side = cuda.Stream()
    x = torch.ones(1024, 1024, device="cuda")
    address = x.data_ptr()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        cuda._sleep(10_000_000)
        x.add_(1)
    x.record_stream(side)
    del x
    assert cuda.memory_stats()["active_bytes.all.current"] == 4 * MIB
    while_in_use = torch.empty(1024, 1024, device="cuda")
    assert while_in_use.data_ptr() != address
    cuda.synchronize()
    after = torch.empty(1024, 1024, device="cuda")
    assert after.data_ptr() == address


def test_reuse_waits_for_what_a_stream_did_before_the_death_alone(session: Session) -> None:
    """The allocator records its events when the tensor dies (`free` of c10/cuda/CUDACachingAllocator.cpp)."""
    side = cuda.Stream()
    x = torch.ones(1024, 1024, device="cuda")
    address = x.data_ptr()
    x.record_stream(side)
    cuda.synchronize()
    del x
    with cuda.stream(side):
        cuda._sleep(10_000_000)
    assert torch.empty(1024, 1024, device="cuda").data_ptr() == address


def test_pinned_memory_waits_for_what_a_stream_did_before_the_death_alone(session: Session) -> None:
    """So does the one of pinned memory (`free` of ATen/core/CachingHostAllocator.h)."""
    x = torch.ones(1024, 1024).pin_memory()
    address = x.data_ptr()
    y = x.to("cuda", non_blocking=True)
    cuda.synchronize()
    del x
    cuda._sleep(10_000_000)
    assert torch.ones(1024, 1024).pin_memory().data_ptr() == address
    assert y.sum().item() == 1 << 20


def test_giving_memory_back_waits_for_the_device(session: Session) -> None:
    x = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    cuda._sleep(20_000_000)
    stream = cuda.current_stream()
    del x
    assert not stream.query()
    cuda.empty_cache()
    assert stream.query()


def test_asking_the_driver_takes_time_and_reuse_does_not(session: Session) -> None:
    host = session.machine.host
    torch.empty(1, device="cuda")
    before = host.now_ns
    x = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    first = host.now_ns - before
    del x
    before = host.now_ns
    y = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    second = host.now_ns - before
    cost = session.machine.devices[0].cost.malloc_ns(100 * MIB)
    assert first - second == cost > 0
    assert y.is_cuda


def test_the_drivers_own_allocator_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    with windtunnel.emulate("V100") as session:
        torch.ones(4, device="cuda")
        assert torch.cuda.get_allocator_backend() == "cudaMallocAsync"
    (note,) = [note for note in session.trace.notes if note.code == "not-modelled"]
    assert dict(note.detail) == {"what": "allocator", "name": "cudaMallocAsync"}
