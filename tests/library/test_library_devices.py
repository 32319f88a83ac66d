"""Devices, counting and falling back: the same names with and without GPUs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from windtunnel import torch as wt
from windtunnel.errors import UsageError
from windtunnel.vocabulary import Vocabulary


def test_the_module_offers_the_vocabulary():
    vocabulary: Vocabulary = wt
    names = [name for name in vars(Vocabulary) if not name.startswith("_")]
    assert len(names) >= 10
    assert all(callable(getattr(vocabulary, name)) for name in names)


def test_importing_it_needs_no_emulation_and_no_trainer():
    program = "import sys; from windtunnel import torch; print([m for m in sys.modules if 'windtunnel' in m])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "windtunnel.seam" not in done.stdout
    assert "windtunnel.train" not in done.stdout


# mission 11, 12, 13, 15, 17, 18
def test_devices_are_pytorchs_own():
    assert repr((wt.cpu(), wt.gpu(), wt.gpu(1))) == (
        "(device(type='cpu'), device(type='cuda', index=0), device(type='cuda', index=1))"
    )
    assert wt.cpu(5) == wt.cpu()
    assert wt.gpu() == wt.gpu(0)
    assert wt.gpu(0) != torch.device("cuda")


def test_negative_gpu_is_refused():
    with pytest.raises(UsageError, match=r"gpu\(-1\) does not exist"):
        wt.gpu(-1)


# mission 21, 22, 23, 25
def test_without_gpus_everything_is_the_cpu():
    assert wt.num_gpus() == 0
    assert wt.try_gpu() == wt.try_gpu(10) == wt.cpu()
    assert wt.try_all_gpus() == [wt.cpu()]
    assert wt.visible_devices() == []
    assert wt.info() == []
    with pytest.raises(UsageError, match=r"2 GPUs needed, 0 found: PyTorch .* Run it where .*--gpus 2xV100"):
        wt.require_gpus(2)
    wt.synchronize()


# mission 10, 21, 22, 23, 24
def test_with_two_gpus(session):
    assert wt.num_gpus() == 2
    assert repr((wt.try_gpu(), wt.try_gpu(10), wt.try_all_gpus())) == (
        "(device(type='cuda', index=0), device(type='cpu'), "
        "[device(type='cuda', index=0), device(type='cuda', index=1)])"
    )
    assert wt.require_gpus(2) == wt.try_all_gpus()
    assert wt.require_gpus(0) == []
    assert torch.ones(1).device == wt.cpu()
    with pytest.raises(UsageError, match="3 GPUs needed, 2 found: the machine shows no more to this process"):
        wt.require_gpus(3)


# mission 94
def test_visible_devices_are_the_physical_ones(session, monkeypatch):
    assert wt.visible_devices() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, 0,-1,0")
    assert wt.visible_devices() == ["1", "0"]


# mission 107
def test_info_is_what_nvidia_smi_knows(session):
    first, second = wt.info()
    assert (first.index, second.index) == (0, 1)
    assert first.name == "Tesla V100-SXM2-16GB"
    assert first.memory_total_bytes // 2**20 == 16384  # nvidia-smi's total since driver 510
    assert first.power_limit_w == 300
    assert first.uuid.startswith("GPU-")
    assert first.uuid != second.uuid


# mission 26
def test_device_of():
    assert wt.device_of(torch.tensor([1, 2, 3])) == wt.cpu()
    assert wt.device_of({"a": [torch.ones(1)], "b": (None, "text", torch.ones(2))}) == wt.cpu()
    assert wt.device_of(nn.Linear(2, 2)) == wt.cpu()
    assert wt.device_of(nn.utils.rnn.pack_sequence([torch.ones(2)])) == wt.cpu()
    with pytest.raises(UsageError, match="found no tensor in a list"):
        wt.device_of([1, 2])


# mission 28
def test_device_of_a_mixture_names_the_devices(session):
    mixed = [torch.ones(1), torch.ones(1, device="cuda:1")]
    with pytest.raises(UsageError, match="found tensors on cpu, cuda:1 in one list"):
        wt.device_of(mixed)


# mission 95, 96, 98
def test_new_tensors_follow_their_source(session):
    on_gpu = wt.to(torch.ones(2), wt.gpu(1))
    for made in (on_gpu.new_full((3, 2), 0.3), on_gpu.new_tensor([[1, 2, 3]]), torch.zeros_like(on_gpu)):
        assert wt.device_of(made) == wt.gpu(1)


def test_memory(session):
    before = wt.memory(wt.gpu(0))
    kept = torch.ones(2**20, device=wt.gpu(0))
    after = wt.memory(wt.gpu(0))
    assert after.allocated_bytes - before.allocated_bytes == kept.numel() * 4
    assert after.total_bytes >= after.free_bytes > 0
    assert wt.memory(wt.gpu(1)).allocated_bytes == 0  # mission 32
    assert "PyTorch CUDA memory summary" in wt.memory_summary(wt.gpu(0))


def test_main_memory():
    now = wt.memory()
    assert 0 < now.allocated_bytes <= now.peak_allocated_bytes < now.total_bytes
    assert now.free_bytes <= now.total_bytes
    assert wt.memory_summary().startswith("main memory: this process ")


def test_fft_plan_cache(session):
    cache = wt.fft_plan_cache(wt.gpu(0))
    torch.fft.fft(torch.ones(8, device=wt.gpu(0)))
    assert cache.size == 1
    cache.max_size = 10
    assert wt.fft_plan_cache(wt.gpu(0)).max_size == 10
    assert wt.fft_plan_cache(wt.gpu(1)).max_size == 4096
    cache.clear()
    assert cache.size == 0
    with pytest.raises(UsageError, match="the CPU has no cuFFT plan cache"):
        wt.fft_plan_cache(wt.cpu())
