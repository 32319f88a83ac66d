"""Training on an emulated GPU gives, bit for bit, what the same operators give on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from windtunnel.session import Session
from windtunnel.trace.operation import Kind

torch.set_num_threads(1)


class Attention(nn.Module):
    """One head over a sequence, with an embedding before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.qkv = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of each sequence."""
        q, k, v = self.qkv(self.norm(self.embed(x))).chunk(3, -1)
        with sdpa_kernel(SDPBackend.MATH):
            return self.out(F.scaled_dot_product_attention(q, k, v).mean(1))


class Recurrent(nn.Module):
    """An LSTM and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, batch_first=True, num_layers=2, bidirectional=True)
        self.out = nn.Linear(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores from the last step."""
        return self.out(self.lstm(x)[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 4)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "mlp": (mlp, lambda: torch.randn(8, 6)),
    "convolutional": (convolutional, lambda: torch.randn(8, 1, 8, 8)),
    "attention": (Attention, lambda: torch.randint(0, 11, (8, 5))),
    "recurrent": (Recurrent, lambda: torch.randn(8, 3, 6)),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p, **kw: torch.optim.SGD(p, lr=0.1, momentum=0.9, **kw),
    "Adam": lambda p, **kw: torch.optim.Adam(p, lr=0.01, **kw),
    "AdamW": lambda p, **kw: torch.optim.AdamW(p, lr=0.01, **kw),
    "RMSprop": lambda p, **kw: torch.optim.RMSprop(p, lr=0.01, **kw),
    "Adagrad": lambda p, **kw: torch.optim.Adagrad(p, lr=0.01, **kw),
    "NAdam": lambda p, **kw: torch.optim.NAdam(p, lr=0.01, **kw),
}


def train(model_name: str, optimizer_name: str, device: str, **keywords: bool) -> list[torch.Tensor]:
    """Parameters after five steps, on the host."""
    make, data = MODELS[model_name]
    torch.manual_seed(0)
    model = make().to(device)
    x = data().to(device)
    y = torch.randint(0, 4, (8,)).to(device)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), **keywords)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert all(p.device.type == torch.device(device).type for p in model.parameters())
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_models_train_to_the_same_bits(session: Session, model: str, optimizer: str) -> None:
    there = train(model, optimizer, "cuda:1")
    here = train(model, optimizer, "cpu", foreach=True)
    assert all(torch.equal(a, b) for a, b in zip(there, here, strict=True))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_take_their_multi_tensor_form(session: Session, optimizer: str) -> None:
    there = train("mlp", optimizer, "cuda")
    here = train("mlp", optimizer, "cpu", foreach=True)
    assert all(torch.equal(a, b) for a, b in zip(there, here, strict=True))
    names = {record.signature.name for record in session.trace if record.kind == Kind.KERNEL}
    assert any(name.startswith("aten::_foreach_") for name in names)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_fused_optimizers(session: Session, optimizer: str) -> None:
    there = train("mlp", optimizer, "cuda", fused=True)
    here = train("mlp", optimizer, "cpu", fused=True)
    assert all(torch.allclose(a, b) for a, b in zip(there, here, strict=True))
    names = {record.signature.name for record in session.trace if record.kind == Kind.KERNEL}
    assert any(name.startswith("aten::_fused_") for name in names)


def test_gradients_cross_devices(session: Session) -> None:
    first = nn.Linear(3, 3).to("cuda:0")
    second = nn.Linear(3, 1).to("cuda:1")
    x = torch.ones(2, 3, device="cuda:0", requires_grad=True)
    second(first(x).to("cuda:1")).sum().cpu().backward()
    assert x.grad is not None
    assert x.grad.device == torch.device("cuda:0")
    assert first.weight.grad is not None
    assert first.weight.grad.device == torch.device("cuda:0")
    assert second.weight.grad is not None
    assert second.weight.grad.device == torch.device("cuda:1")


def test_a_moved_leaf_names_its_node_as_pytorch_does(session: Session) -> None:
    x = torch.ones(2, requires_grad=True)
    assert x.cuda().grad_fn.name() == "ToCopyBackward0"  # type: ignore[union-attr]


def test_double_backward_across_devices(session: Session) -> None:
    x = torch.tensor([2.0], requires_grad=True)
    y = (x.to("cuda") ** 3).sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    assert first.device.type == "cpu"
    first.backward()
    assert x.grad is not None
    assert x.grad.item() == 12.0


def test_hooks_and_custom_functions_see_the_device(session: Session) -> None:
    seen: list[str] = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            seen.append(str(x.device))
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            seen.append(str(grad.device))
            return grad * 2

    x = torch.ones(3, device="cuda:1", requires_grad=True)
    x.register_hook(lambda grad: seen.append(str(grad.device)))
    Double.apply(x).sum().backward()
    assert seen == ["cuda:1"] * 3


def test_checkpointing(session: Session) -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1)).cuda()
    x = torch.randn(5, 4, device="cuda", requires_grad=True)
    checkpoint(block, x, use_reentrant=False).sum().backward()
    with_checkpoint = x.grad.clone()  # type: ignore[union-attr]
    assert with_checkpoint.is_cuda
    assert with_checkpoint.abs().sum().item() > 0


def test_parameters_keep_their_identity(session: Session) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = [id(p) for p in model.parameters()]
    model.cuda()
    assert [id(p) for p in model.parameters()] == before
    assert {str(t.device) for t in (*model.parameters(), *model.buffers())} == {"cuda:0"}
    model.cpu()
    assert {str(t.device) for t in (*model.parameters(), *model.buffers())} == {"cpu"}


def test_lazy_and_meta_modules(session: Session) -> None:
    lazy = nn.Sequential(nn.LazyLinear(1)).to("cuda:1")
    assert lazy(torch.ones(2, 3, device="cuda:1")).device == torch.device("cuda:1")
    with torch.device("meta"):
        skeleton = nn.Linear(3, 2)
    real = skeleton.to_empty(device="cuda")
    assert real.weight.device == torch.device("cuda:0")


def test_functional_transforms(session: Session) -> None:
    x = torch.arange(3.0, device="cuda")
    assert torch.func.grad(lambda t: (t**2).sum())(x).tolist() == [0.0, 2.0, 4.0]
    assert torch.vmap(lambda t: t * 2)(x).tolist() == [0.0, 2.0, 4.0]
    assert torch.func.jacrev(lambda t: t * 2)(x).device == torch.device("cuda:0")


def test_device_memory_returns_when_tensors_die(session: Session) -> None:
    start = torch.cuda.memory_allocated()
    train("mlp", "Adam", "cuda")
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() == start
