"""Fake tensors name an emulated GPU, train and move there without memory; `torch.export` takes models on devices."""

from __future__ import annotations

import io

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode, fake_tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from windtunnel.seam.torch.tags import VERSION
from windtunnel.session import Session


def test_fake_tensors_name_their_device(session: Session) -> None:
    with FakeTensorMode():
        x = torch.ones(3, device="cuda:1")
        assert (str(x.device), x.is_cuda, str((x + 1).device)) == ("cuda:1", True, "cuda:1")
        assert str(torch.tensor([1.0], device="cuda").device) == "cuda:0"
        assert str(x.to("cuda:0").device) == "cuda:0"
        assert not x.cpu().is_cuda
        with pytest.raises(RuntimeError, match="device"):
            x + torch.ones(3)
    assert torch.cuda.memory_allocated() == 0


def test_an_operator_that_tells_no_shapes_runs_on_zeros(session: Session) -> None:
    """As `torch.fft.irfftn` does before PyTorch 2.7."""
    with FakeTensorMode() as mode:
        x = torch.empty(5, 6, 7, dtype=torch.complex64, device="cuda:1")
        y = torch.fft.irfftn(x, s=(3, 10), dim=(1, 2))
        assert (str(y.device), y.shape, y.stride()) == ("cuda:1", (5, 3, 10), (30, 10, 1))
        leaves, spec = pytree.tree_flatten(((x.real,), {}))
        sine = fake_tensor.run_fallback_kernel(mode, torch.ops.aten.sin.default, leaves, spec, RuntimeError())
        assert (type(sine), str(sine.device), str(x.device)) == (fake_tensor.FakeTensor, "cuda:1", "cuda:1")
    assert torch.cuda.memory_allocated(1) == 0


def test_fake_models_train(session: Session) -> None:
    with FakeTensorMode():
        model = nn.TransformerEncoderLayer(8, 2, 16, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        with torch.autocast("cuda"):
            out = model(torch.ones(5, 2, 8, device="cuda"))
        F.cross_entropy(out.reshape(10, 8), torch.zeros(10, dtype=torch.long, device="cuda")).backward()
        optimizer.step()
        assert {str(p.grad.device) for p in model.parameters() if p.grad is not None} == {"cuda:0"}


def test_gradients_of_moved_fakes_come_back(session: Session) -> None:
    with FakeTensorMode():
        host = torch.ones(3, requires_grad=True)
        (host.cuda().half() * 2).sum().backward()
        assert host.grad is not None
        assert (host.grad.device.type, host.grad.dtype) == ("cpu", torch.float32)


class Shifted(nn.Module):
    """A model that makes a tensor where its input is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + torch.ones(3, device=x.device)
        return out


def test_export_of_a_model_on_a_device(session: Session) -> None:
    model, x = Shifted().cuda(), torch.ones(2, 3, device="cuda")
    exported = torch.export.export(model, (x,), strict=False)
    made = [node.kwargs["device"] for node in exported.graph.nodes if "ones" in str(node.target)]
    assert made == [torch.device("cuda", 0)]
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    buffer.seek(0)
    out = torch.export.load(buffer).module()(x)
    assert out.is_cuda
    assert torch.equal(out, model(x))


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM, nn.RNN])
def test_export_of_a_recurrent_layer_on_a_device(session: Session, layer: type[nn.RNNBase]) -> None:
    """PyTorch's Python kernels of in-place functions copy between fake and meta tensors inside an operator."""
    model = layer(3, 4, num_layers=2, batch_first=True).cuda().eval()
    x = torch.randn(2, 5, 3, device="cuda")
    if VERSION < (2, 7):  # which refuses it on the host as well
        with pytest.raises(ValueError, match="were assigned during export"):
            torch.export.export(model, (x,), strict=False)
        return
    exported = torch.export.export(model, (x,), strict=False)
    out = exported.module()(x)[0]
    assert out.is_cuda
    torch.testing.assert_close(out, model(x)[0])


def test_a_fake_tensor_inside_its_operator_is_a_meta_tensor(session: Session) -> None:
    with FakeTensorMode():
        x = torch.ones(3, device="cuda")
        assert str(x.sigmoid_().tanh_().device) == "cuda:0"


def test_a_graph_that_is_traced_with_real_values_has_the_devices(session: Session) -> None:
    def program(x: Tensor) -> Tensor:
        return x.to("cuda:0") * torch.arange(3, device="cuda:0")

    x = torch.ones(3, device="cuda:1")
    graph = make_fx(program)(x)
    called = [node for node in graph.graph.nodes if node.op == "call_function"]
    assert [(str(node.target), node.kwargs.get("device")) for node in called] == [
        ("aten._to_copy.default", torch.device("cuda:0")),
        ("aten.arange.default", torch.device("cuda:0")),
        ("aten.mul.Tensor", None),
    ]
    out = graph(x + 1)
    assert (str(out.device), out.tolist()) == ("cuda:0", [0, 2, 4])
