"""torch.compile runs eagerly and says so once; torch.jit on emulated tensors."""

from __future__ import annotations

import copy
import io
import sys
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import windtunnel
from windtunnel.errors import UnsupportedError
from windtunnel.seam.torch.compiled import compilers
from windtunnel.session import Session


@pytest.fixture(autouse=True)
def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA builds of PyTorch bring Triton along; `tests/on_compile` has what happens then."""
    monkeypatch.setattr(compilers, "find_spec", lambda name: None)


def noise(x: Tensor) -> Tensor:
    if bool(x.sum() > 0):
        return x * 2
    return F.dropout(x, 0.5) + torch.rand(3, device="cuda") + torch.ones(3, device=x.device)


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)).cuda()


def test_compile_runs_eagerly_and_says_so_once(session: Session) -> None:
    compiled = torch.compile(model())
    compiled(torch.ones(2, 3, device="cuda")).sum().backward()
    double = torch.compile(lambda x: x * 2, fullgraph=True)
    assert double(torch.ones(1, device="cuda")).item() == 2
    found = [finding for finding in session.findings() if finding.code == "not-modelled"]
    assert [finding.severity for finding in found] == ["info"]
    assert "torch.compile compiled nothing: Sequential" in found[0].message
    assert 'pip install "triton>=' in found[0].advice


@pytest.mark.parametrize("options", [{"backend": "eager"}, {"disable": True}])
def test_what_compiles_nothing_on_a_gpu_either_is_no_gap(session: Session, options: dict[str, Any]) -> None:
    torch.compile(model(), **options)(torch.ones(2, 3, device="cuda"))
    assert not [finding for finding in session.findings() if finding.code == "not-modelled"]


def test_a_program_that_is_to_run_uncompiled_is_no_gap(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    torch.compile(model())(torch.ones(2, 3, device="cuda"))
    assert not [finding for finding in session.findings() if finding.code == "not-modelled"]


def test_a_compiled_model_has_the_names_of_one(session: Session) -> None:
    stock = model()
    compiled: Any = torch.compile(stock)
    assert next(iter(compiled.state_dict())) == "_orig_mod.0.weight"
    assert compiled._orig_mod is stock
    assert next(compiled.parameters()).is_cuda


def test_compile_as_a_decorator_and_in_place(session: Session) -> None:
    @torch.compile(mode="max-autotune")
    def increase(x: Tensor) -> Tensor:
        return x + 1

    stock = model()
    stock.compile()
    assert increase(torch.zeros(1, device="cuda")).item() == 1
    assert stock(torch.ones(2, 3, device="cuda")).shape == (2, 2)
    with pytest.raises(RuntimeError, match="Either mode or options can be specified"):
        torch.compile(stock, mode="default", options={"max_autotune": True})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"backend": "nothing"}, "Invalid backend: 'nothing'"),
        ({"mode": "nothing"}, "Unrecognized mode=nothing"),
        ({"options": {"nothing": 1}}, "Unexpected optimization option nothing"),
    ],
)
def test_what_compile_does_not_know_is_refused(session: Session, options: dict[str, Any], text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        torch.compile(model(), **options)


@pytest.mark.parametrize("options", [{"backend": "aot_eager"}, {"options": {"max_autotune": True}}])
def test_what_compile_knows_is_taken(session: Session, options: dict[str, Any]) -> None:
    assert torch.compile(model(), **options)(torch.ones(2, 3, device="cuda")).shape == (2, 2)


def test_scripts_may_call_what_the_seam_replaces(session: Session) -> None:
    scripted = torch.jit.script(noise)
    assert scripted(torch.ones(3, device="cuda")).tolist() == [2, 2, 2]
    out = scripted(-torch.ones(3, device="cuda"))
    assert out.is_cuda
    assert out.shape == (3,)


def test_scripted_and_traced_models(session: Session) -> None:
    eager = model().eval()
    x = torch.ones(2, 3, device="cuda")
    for compiled in (torch.jit.script(eager), torch.jit.trace(eager, x), torch.jit.freeze(torch.jit.script(eager))):
        assert torch.equal(compiled(x), eager(x))
        assert compiled(x).is_cuda


class Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x).mul(1.5)


class HoldsTraced(nn.Module):
    def __init__(self, traced: torch.jit.ScriptModule) -> None:
        super().__init__()
        self.traced = traced

    def forward(self, x: Tensor) -> Tensor:
        return self.traced(x) * 2.0  # type: ignore[no-any-return]


def test_a_script_holds_a_traced_module_with_a_number(session: Session) -> None:
    """e3nn's networks: TorchScript reads the number, a tensor in the trace, by `aten::_local_scalar_dense`."""
    x = torch.ones(2, 3)
    for there in (x, x.cuda()):
        scripted = torch.jit.script(HoldsTraced(torch.jit.trace(Scaled(), x)))
        for _ in range(3):  # the second call profiles, the third is optimized
            out = scripted(there)
        torch.testing.assert_close(out.cpu(), x.tanh() * 3)
        assert out.device.type == there.device.type


def test_a_script_asks_for_the_switches_that_the_seam_replaces(session: Session) -> None:
    scripted = torch.jit.script(nn.MultiheadAttention(8, 2, batch_first=True).cuda())
    x = torch.ones(1, 3, 8, device="cuda")
    assert scripted(x, x, x)[0].shape == (1, 3, 8)
    assert torch.jit.script(autocast_is_on)() is False


def autocast_is_on() -> bool:
    return torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled()


def test_a_library_of_gpu_code_is_refused(session: Session) -> None:
    exported = torch.export.export(nn.Linear(2, 2).cuda(), (torch.ones(1, 2, device="cuda"),))
    with pytest.raises(UnsupportedError, match=r"aoti_compile_and_package compiles a library of GPU code"):
        torch._inductor.aoti_compile_and_package(exported)


def test_a_saved_script_remembers_its_devices(session: Session) -> None:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(model().cuda(1)), buffer, _extra_files={"note.txt": b"kept"})
    for location, device in ((None, "cuda:1"), ("cuda:0", "cuda:0"), ("cpu", "cpu")):
        buffer.seek(0)
        extra: dict[str, Any] = {"note.txt": ""}
        loaded = torch.jit.load(buffer, map_location=location, _extra_files=extra)
        assert {str(parameter.device) for parameter in loaded.parameters()} == {device}
        assert extra == {"note.txt": b"kept"}
        assert str(loaded(torch.ones(2, 3, device=device)).device) == device


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])  # type: ignore[no-any-return]


@pytest.mark.parametrize("no_data", [False, True])
def test_a_scripted_module_keeps_its_parameters_where_it_is_moved(no_data: bool) -> None:
    """pytorch/benchmark's demucs: an LSTM's list of weights is a second place that holds them."""
    with windtunnel.emulate("V100", no_data=no_data):
        scripted = torch.jit.script(Recurrent())
        held = list(scripted.parameters())
        optimizer = torch.optim.SGD(held, 0.1)
        for device in ("cuda", "cpu", "cuda"):
            scripted.to(device)
            assert all(one is other for one, other in zip(held, scripted.parameters(), strict=True))
            out = scripted(torch.ones(5, 2, 3, device=device))
            assert {one.device.type for one in (out, *held, *scripted.lstm._flat_weights)} == {device}
        out.sum().backward()
        optimizer.step()
        assert all(one.grad is not None and one.grad.is_cuda for one in held)


def placed(x: Tensor) -> Tensor:
    on_device = torch.tensor([0.5, 2.0], device=x.device)
    return torch.maximum(on_device, x) + torch.as_tensor([1.0, 1.0], device=x.device)


@pytest.mark.parametrize("no_data", [False, True])
def test_a_script_makes_tensors_of_numbers_where_its_arguments_are(no_data: bool) -> None:
    """pytorch/benchmark's pyhpc_isoneutral_mixing and pyhpc_turbulent_kinetic_energy."""
    with windtunnel.emulate("V100", no_data=no_data):
        for _ in range(3):
            out = torch.jit.script(placed)(torch.ones(2, device="cuda"))
            assert out.is_cuda
            assert out.shape == (2,)
            assert no_data or out.tolist() == [2.0, 3.0]
        assert torch.ones(2).to("meta").device.type == "meta"


def test_scripts_compile_after_an_emulation() -> None:
    with windtunnel.emulate("V100"):
        torch.jit.script(noise)
    assert torch.jit.script(lambda_free)(torch.ones(2)).tolist() == [1, 1]


def lambda_free(x: Tensor) -> Tensor:
    return x + torch.zeros(2)


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.view(x.shape[0], -1, 2, 4).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("module", "x", "node"),
    [
        (nn.Conv2d(3, 4, 3, padding=1), torch.rand(1, 3, 8, 8), "aten::_convolution"),
        (nn.Sequential(nn.ConvTranspose2d(3, 4, 2, 2), nn.ReLU()), torch.rand(1, 3, 4, 4), "aten::_convolution"),
        (Attention(), torch.rand(2, 5, 8), "aten::scaled_dot_product_attention"),
        (nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.LayerNorm(8)).eval(), torch.rand(2, 8), "aten::linear"),
    ],
    ids=["conv", "transposed", "attention", "linear"],
)
def test_a_trace_holds_the_operators_and_works_for_other_sizes(
    module: nn.Module, x: torch.Tensor, node: str, session: Session
) -> None:
    module = copy.deepcopy(module).cuda()
    traced = torch.jit.trace(module, x.cuda())
    assert node in str(traced.inlined_graph)
    for batch in (x, torch.cat([x, x * 2])):
        torch.testing.assert_close(traced(batch.cuda()), module(batch.cuda()))


def test_a_traced_graph_with_sizes_can_be_printed(session: Session) -> None:
    """Passes over the graph compare and show the tensors of one number that the tracer made of sizes."""
    module = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).cuda().eval()
    traced = torch.jit.trace(module, (torch.randn(2, 5, 8, device="cuda"),), check_trace=False)
    assert "aten::" in str(traced.inlined_graph)


def test_what_a_version_keeps_of_devices_is_emptied_whatever_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.15 made get_device_tflops a plain function, beside a new one that keeps what it finds."""
    utils: Any = ModuleType("torch._inductor.utils")
    utils.get_device_tflops = lambda dtype: 0.0
    utils._get_device_tflops = cache(lambda dtype: 125.0)
    utils._get_device_tflops(torch.half)
    monkeypatch.setitem(sys.modules, utils.__name__, utils)
    monkeypatch.setitem(sys.modules, "torch._dynamo.device_interface", ModuleType("without tables"))
    monkeypatch.setattr(compilers, "_reset_dynamo", lambda: None)
    compilers._forget()
    assert utils._get_device_tflops.cache_info().currsize == 0
