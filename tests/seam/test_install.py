"""Beginning and ending: everything that is replaced is put back by identity."""

from __future__ import annotations

import threading
import time
import types
from typing import Any

import pytest
import torch
import torch.cuda.comm
import torch.nn.parallel.comm

import understudy
from understudy.errors import InstallError, UnknownGpuError, UsageError

MODULES = (
    torch, torch._C, torch._C._nn, torch.cuda, torch.cuda.memory, torch.cuda.streams, torch.cuda.random,
    torch.cuda.graphs, torch.autograd, torch.autograd.graph,
    torch.cuda.comm, torch.cuda.nccl, torch.accelerator, torch.backends.cuda, torch.backends.cudnn, torch.version,
    torch.nn.functional, torch.nn.parallel.comm, torch.distributed, torch.distributed.distributed_c10d,
    torch.multiprocessing, torch.utils.data.dataloader, torch.serialization, torch.storage, torch.amp.autocast_mode,
    time, threading,
)  # fmt: skip
CLASSES = (torch.Tensor, torch.UntypedStorage, torch.TypedStorage, torch.autocast, threading.Thread, torch.nn.Module)


def names() -> dict[tuple[str, str], Any]:
    """Every attribute of the modules and classes that the seam touches."""
    found: dict[tuple[str, str], Any] = {}
    for owner in (*MODULES, *CLASSES):
        for name, value in list(vars(owner).items()):
            if not isinstance(value, types.ModuleType) and not name.startswith("__warning"):
                found[(getattr(owner, "__name__", str(owner)), name)] = value
    return found


def use_a_lot() -> None:
    x = torch.randn(4, 4, device="cuda", requires_grad=True)
    with torch.autocast("cuda"):
        (x @ x).float().sum().backward()
    with torch.cuda.stream(torch.cuda.Stream()):
        x.detach().add_(1)
    torch.cuda.synchronize()
    thread = threading.Thread(target=lambda: torch.ones(2, device="cuda:1").sum().item())
    thread.start()
    thread.join()


def test_everything_is_put_back_by_identity() -> None:
    torch.cuda.is_available()
    with understudy.emulate("2xV100"):
        pass
    before = names()
    with understudy.emulate("2xV100"):
        use_a_lot()
        assert torch.cuda.is_available()
    after = names()
    changed = {key for key in before.keys() | after.keys() if before.get(key, after) is not after.get(key, before)}
    assert changed == set()


def test_after_the_end_there_is_no_gpu() -> None:
    with understudy.emulate("2xV100"):
        assert torch.cuda.device_count() == 2
    assert torch.cuda.device_count() == 0
    assert torch.ones(2).device.type == "cpu"


def test_an_error_inside_ends_the_emulation() -> None:
    with pytest.raises(ZeroDivisionError), understudy.emulate("V100"):
        1 / 0  # noqa: B018
    assert not torch.cuda.is_available()


def test_emulations_follow_each_other() -> None:
    for spec, count in (("V100", 1), ("4xH100", 4), ("2", 2)):
        with understudy.emulate(spec):
            assert torch.cuda.device_count() == count
            assert torch.ones(1, device=f"cuda:{count - 1}").item() == 1.0


def test_one_inside_another_is_refused() -> None:
    with understudy.emulate("V100"), pytest.raises(InstallError, match="active in this process already"):
        understudy.emulate("V100").__enter__()


def test_bad_options_are_refused_in_a_sentence() -> None:
    with pytest.raises(UnknownGpuError, match="no GPU is called"):
        understudy.emulate("2xV1000").__enter__()
    with pytest.raises(UsageError, match="there is no option 'speed'"):
        understudy.emulate("V100", speed=3).__enter__()
    with pytest.raises(UsageError, match="clock cannot be 'fast': it is 'virtual' or 'real'"):
        understudy.emulate("V100", clock="fast").__enter__()
    assert not torch.cuda.is_available()


def test_a_cuda_build_says_what_it_was_compiled_with(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with understudy.emulate("V100"):
        assert torch.version.cuda == "13.0"


def test_a_cpu_build_says_the_emulated_cuda(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with understudy.emulate("V100", cuda_version="12.4"):
        assert torch.version.cuda == "12.4"
