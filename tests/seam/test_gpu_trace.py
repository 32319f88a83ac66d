"""Callbacks of the driver's doings, and the sanitizer that stands on them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._utils import CallbackRegistry
from torch.cuda import _gpu_trace

from windtunnel.session import Session

pytestmark = pytest.mark.long
"""Each starts programs of its own."""

RACE = """
import torch
from torch.cuda import _sanitizer
{enable}
stream = torch.cuda.Stream()
a = torch.rand(10, 10, device="cuda")
{wait}
try:
    with torch.cuda.stream(stream):
        torch.mul(a, 5, out=a)
    torch.cuda.synchronize()
    print(a.cpu().shape)
except _sanitizer.CUDASanitizerErrors as errors:
    print(errors)
"""
WAIT = "stream.wait_stream(torch.cuda.current_stream())"


@pytest.fixture
def told(session: Session) -> Iterator[Callable[[str], list[Any]]]:
    """Listens to one kind of callback; afterwards nobody does."""
    before = {name: list(r.callback_list) for name, r in vars(_gpu_trace).items() if isinstance(r, CallbackRegistry)}

    def listen(what: str) -> list[Any]:
        heard: list[Any] = []
        getattr(_gpu_trace, f"register_callback_for_{what}")(lambda *values: heard.append(values))
        torch._C._activate_gpu_trace()
        return heard

    yield listen
    for name, callbacks in before.items():
        vars(_gpu_trace)[name].callback_list = callbacks


def test_events(told: Callable[[str], list[Any]]) -> None:
    kinds = ("creation", "record", "wait", "synchronization", "deletion")
    heard = {kind: told(f"event_{kind}") for kind in kinds}
    event = torch.cuda.Event()
    assert heard["creation"] == []
    event.record()
    event.record()
    event.wait()
    event.synchronize()
    number = event.cuda_event
    del event
    gc.collect()
    assert heard["creation"] == heard["deletion"] == heard["synchronization"] == [(number,)]
    assert heard["record"] == [(number, 0), (number, 0)]
    assert heard["wait"] == [(number, 0)]


def test_an_event_that_was_never_recorded_tells_nothing(told: Callable[[str], list[Any]]) -> None:
    waited, deleted = told("event_wait"), told("event_deletion")
    event = torch.cuda.Event()
    event.wait()
    event.synchronize()
    del event
    assert waited == deleted == []


def test_memory_is_told_of_at_once(told: Callable[[str], list[Any]]) -> None:
    taken, given = told("memory_allocation"), told("memory_deallocation")
    tensor = torch.empty(10, 4, device="cuda")
    address = tensor.data_ptr()
    assert taken == [(address,)]
    view = tensor[0]
    del tensor
    assert given == []
    del view
    assert given == [(address,)]
    again = torch.empty(10, 4, device="cuda")
    assert again.data_ptr() == address
    assert torch.cuda.memory_allocated() == 512


def test_streams_and_waits(told: Callable[[str], list[Any]]) -> None:
    made, streams, devices = told("stream_creation"), told("stream_synchronization"), told("device_synchronization")
    stream = torch.cuda.Stream()
    assert made == [(stream.cuda_stream,)]
    stream.synchronize()
    torch.ones(1, device="cuda").item()
    assert streams == [(stream.cuda_stream,), (0,)]
    torch.cuda.synchronize()
    assert devices == [()]


def run(folder: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(program)
    return subprocess.run(
        [sys.executable, "-m", "windtunnel", "run", "--gpus", "1xV100", str(file)],
        env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_the_sanitizer_finds_a_race(tmp_path: Path) -> None:
    found = run(tmp_path, RACE.format(enable="", wait=""), TORCH_CUDA_SANITIZER="1")
    assert found.stdout == "detected 1 errors\n"
    assert "CSAN detected a possible data race on tensor with data pointer" in found.stderr
    assert "aten::mul.out" in found.stderr


def test_the_sanitizer_is_content_with_a_wait(tmp_path: Path) -> None:
    found = run(tmp_path, RACE.format(enable="_sanitizer.enable_cuda_sanitizer()", wait=WAIT))
    assert found.stdout == "torch.Size([10, 10])\n"
    assert "CSAN" not in found.stderr
