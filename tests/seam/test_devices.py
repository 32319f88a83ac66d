"""Devices: selection, names, visibility, ordinals."""

from __future__ import annotations

import pytest
import torch

import windtunnel
from windtunnel.session import Session


def test_counts_names_and_properties(session: Session) -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    assert torch.cuda.get_device_name(1) == "Tesla V100-SXM2-16GB"
    assert torch.cuda.get_device_capability() == (7, 0)
    properties = torch.cuda.get_device_properties(0)
    assert properties.total_memory == 16945512448
    assert properties.multi_processor_count == 80
    assert "total_memory=16160MB" in repr(properties)


def test_the_current_device_is_tracked(session: Session) -> None:
    assert torch.cuda.current_device() == 0
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
        assert torch.ones(1, device="cuda").device == torch.device("cuda:1")
        with torch.cuda.device("cuda:0"):
            assert torch.cuda.current_device() == 0
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device(1)
    assert torch.zeros(1).cuda().get_device() == 1
    assert torch.accelerator.current_device_index() == 1


def test_accelerator_api(session: Session) -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == 2
    assert str(torch.accelerator.current_accelerator()) == "cuda"
    torch.accelerator.set_device_index(1)
    assert torch.cuda.current_device() == 1
    torch.accelerator.synchronize()


def test_a_number_is_a_cuda_device(session: Session) -> None:
    assert torch.device(1) == torch.device("cuda:1")
    assert isinstance(torch.device("cpu"), torch.device)
    assert torch.ones(2, device=1).device == torch.device("cuda:1")
    assert torch.ones(2).to(1).get_device() == 1
    assert torch.nn.Linear(1, 1).to(1).weight.get_device() == 1


def test_index_less_and_indexed_devices_differ_but_place_alike(session: Session) -> None:
    assert torch.device("cuda") != torch.device("cuda:0")
    assert torch.ones(1, device="cuda").device == torch.device("cuda:0")


@pytest.mark.parametrize("device", ["cuda:2", 7, torch.device("cuda", 5)])
def test_an_ordinal_that_is_not_there(session: Session, device: object) -> None:
    with pytest.raises(RuntimeError, match="CUDA error: invalid device ordinal"):
        torch.ones(1, device=device)  # type: ignore[call-overload]


def test_default_device(session: Session) -> None:
    with torch.device("cuda:1"):
        assert torch.ones(1).get_device() == 1
        assert torch.tensor([1]).get_device() == 1
        assert torch.nn.Linear(2, 2).weight.get_device() == 1
    torch.set_default_device("cuda")
    try:
        assert torch.zeros(3).is_cuda
        assert torch.arange(3).is_cuda
        assert torch.zeros(3, device="cpu").is_cpu
    finally:
        torch.set_default_device(None)
    assert torch.zeros(3).is_cpu


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("1", ["Tesla T4"]),
        ("2,0", ["NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB"]),
        ("", []),
        ("0,9,1", ["Tesla V100-SXM2-16GB"]),
        ("0,0", []),
    ],
)
def test_visible_devices_renumber(monkeypatch: pytest.MonkeyPatch, text: str, names: list[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    with windtunnel.emulate("V100,T4,A100"):
        assert [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] == names
        for index in range(len(names)):
            x = torch.ones(1000, device=index)
            del x
            assert torch.cuda.memory_reserved(index) == 2 << 20


def test_visible_devices_hold_when_set_before_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with windtunnel.emulate("2xV100"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        assert torch.cuda.device_count() == 1
        torch.ones(1, device="cuda")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        assert torch.cuda.device_count() == 1


def test_no_gpu_says_what_pytorch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with windtunnel.emulate("2xV100"):
        assert not torch.cuda.is_available()
        with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
            torch.ones(1, device="cuda")


def test_a_kernel_in_python_makes_tensors_where_its_argument_says(session: Session) -> None:
    library = torch.library.Library("windtunnel_test", "FRAGMENT")
    library.define("doubled(Tensor x, Device device) -> Tensor")

    def doubled(x: torch.Tensor, device: torch.device) -> torch.Tensor:
        return torch.empty(x.shape, device=device).copy_(x * 2)

    library.impl("doubled", doubled, "CPU")
    y = torch.ops.windtunnel_test.doubled(torch.ones(3, device="cuda:1"), torch.device("cuda:1"))
    assert (y.device, y.tolist()) == (torch.device("cuda:1"), [2.0] * 3)
    library._destroy()
