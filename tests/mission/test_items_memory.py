"""Memory management and the plan cache (items 80 to 90)."""

import itertools

import pytest
import torch

import windtunnel

MIB = 2**20


# mission 80
def test_memory_is_reused_without_asking_the_driver(session):
    tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    address = tensor.data_ptr()
    driver_calls = torch.cuda.memory_stats()["num_device_alloc"]
    del tensor
    tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    assert tensor.data_ptr() == address
    assert torch.cuda.memory_stats()["num_device_alloc"] == driver_calls
    assert torch.cuda.memory_stats()["num_device_free"] == 0


# mission 81
def test_cached_memory_still_counts_as_used_by_the_driver(session):
    free, total = torch.cuda.mem_get_info(0)
    assert total == torch.cuda.get_device_properties(0).total_memory
    tensor = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.mem_get_info(0)[0] == free - 64 * MIB
    del tensor
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory_reserved() == 64 * MIB
    assert torch.cuda.mem_get_info(0)[0] == free - 64 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info(0)[0] == free


# mission 82
@pytest.mark.parametrize(
    ("shape", "allocated"), [((1024, 1024), 4194304), ((1,), 512), ((128,), 512), ((129,), 1024), ((0,), 0)]
)
def test_allocated_bytes_are_rounded_to_512(shape, allocated, session):
    tensor = torch.ones(shape, device="cuda")
    assert torch.cuda.memory_allocated() == allocated
    assert tensor.nbytes <= allocated


# mission 82
def test_peak_of_allocated_memory(session):
    kept = torch.ones(256, device="cuda")
    gone = torch.ones(1024, device="cuda")
    del gone
    assert torch.cuda.memory_allocated() == kept.nbytes
    assert torch.cuda.max_memory_allocated() == 1024 + 4096
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == kept.nbytes


# mission 83
@pytest.mark.parametrize(
    ("size", "reserved"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (21 * MIB, 22 * MIB),
    ],
)
def test_reserved_bytes_come_in_segments(size, reserved, session):
    tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_reserved() == reserved
    del tensor
    assert torch.cuda.memory_reserved() == reserved
    assert torch.cuda.max_memory_reserved() == reserved


# mission 84
def test_empty_cache_frees_what_no_tensor_uses_and_nothing_else(session):
    kept = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    gone = torch.empty(48 * MIB, dtype=torch.uint8, device="cuda")
    del gone
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (32 * MIB, 80 * MIB)
    torch.cuda.empty_cache()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (32 * MIB, 32 * MIB)
    assert kept.is_cuda


# mission 84
def test_empty_cache_does_not_raise_the_memory_available_to_pytorch(session):
    tensor = torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda")
    del tensor
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    available = torch.cuda.mem_get_info()[0] + cached
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] == available


# mission 85
def test_memory_stats_has_pytorchs_keys(session):
    torch.ones(1, device="cuda")
    stats = torch.cuda.memory_stats()
    counted = ["allocation", "segment", "active", "inactive_split"]
    counted += ["allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"]
    keys = itertools.product(counted, ["all", "small_pool", "large_pool"], ["current", "peak", "allocated", "freed"])
    assert {".".join(key) for key in keys} <= set(stats)
    assert {"num_alloc_retries", "num_ooms", "num_sync_all_streams", "max_split_size"} <= set(stats)
    assert stats["allocation.all.allocated"] == 1
    assert stats["allocation.all.freed"] == 1
    assert stats["requested_bytes.all.peak"] == 4
    assert stats["segment.small_pool.current"] == 1
    assert "PyTorch CUDA memory summary, device ID 0" in torch.cuda.memory_summary()


# mission 86
def test_memory_snapshot_shows_segments_and_blocks(session):
    tensor = torch.ones(1024, 1024, device="cuda:1")
    (segment,) = torch.cuda.memory_snapshot()
    facts = {key: segment[key] for key in ("device", "total_size", "allocated_size", "active_size", "stream")}
    assert facts == {
        "device": 1,
        "total_size": 20 * MIB,
        "allocated_size": tensor.nbytes,
        "active_size": tensor.nbytes,
        "stream": 0,
    }
    assert segment["segment_type"] == "large"
    assert [(block["size"], block["state"]) for block in segment["blocks"]] == [
        (tensor.nbytes, "active_allocated"),
        (16 * MIB, "inactive"),
    ]
    assert segment["address"] == tensor.data_ptr()


# mission 87, 89
def test_plans_are_cached_by_geometry_and_evicted(session):
    cache = torch.backends.cuda.cufft_plan_cache[0]
    signal = torch.randn(64, device="cuda")
    assert cache.size == 0
    for _ in range(3):
        torch.fft.fft(signal)
    assert cache.size == 1
    torch.fft.fft(torch.randn(3, 64, device="cuda"))
    assert cache.size == 2
    cache.max_size = 1
    assert cache.size == 1
    torch.fft.fft(torch.randn(128, device="cuda"))
    assert cache.size == 1
    cache.clear()
    assert cache.size == 0


# mission 88
@pytest.mark.parametrize(("cuda_version", "max_size"), [("11.2", 4096), ("10.0", 4096), ("9.2", 1023)])
def test_plan_cache_default_size_by_cuda_version(cuda_version, max_size):
    with windtunnel.emulate("V100", cuda_version=cuda_version):
        cache = torch.backends.cuda.cufft_plan_cache
        assert cache.max_size == max_size
        cache.max_size = 7
        assert cache.max_size == 7


# mission 90
@pytest.mark.parametrize("index", [1, torch.device("cuda", 1), "cuda:1"])
def test_plan_cache_of_another_device(index, session):
    torch.backends.cuda.cufft_plan_cache[index].max_size = 10
    assert torch.backends.cuda.cufft_plan_cache[index].max_size == 10
    assert torch.backends.cuda.cufft_plan_cache[0].max_size == 4096
    torch.fft.fft(torch.randn(8, device="cuda:1"))
    assert [torch.backends.cuda.cufft_plan_cache[i].size for i in (0, 1)] == [0, 1]
    with torch.cuda.device(1):
        assert torch.backends.cuda.cufft_plan_cache.max_size == 10
