"""Recurrent cells, and layers that cuDNN does not take, run CUDA's kernels and give the CPU's values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import windtunnel
from windtunnel.session import Session

CELLS = (nn.LSTMCell, nn.GRUCell, nn.RNNCell)
LAYERS = [
    (nn.LSTM, {}),
    (nn.LSTM, {"bidirectional": True, "num_layers": 2, "batch_first": True}),
    (nn.LSTM, {"proj_size": 4, "num_layers": 2, "bidirectional": True}),
    (nn.GRU, {"num_layers": 2, "bias": False}),
    (nn.GRU, {"bidirectional": True}),
    (nn.RNN, {"nonlinearity": "relu", "num_layers": 2}),
]


@pytest.fixture
def without_cudnn() -> Iterator[None]:
    """cuDNN switched off, as WGAN-GP and other double backward passes need it."""
    with torch.backends.cudnn.flags(enabled=False):
        yield


def gradients(module: nn.Module, x: Tensor, run: Callable[[nn.Module, Tensor], list[Tensor]]) -> list[Tensor]:
    """The module's results, and the gradients of its input and parameters, on the host."""
    x = x.to(next(module.parameters()).device).requires_grad_()
    results = run(module, x)
    sum((result * result).sum() for result in results).backward()
    return [found.detach().cpu() for found in (*results, x.grad, *(p.grad for p in module.parameters()))]


def three_steps(module: nn.Module, x: Tensor) -> list[Tensor]:
    state = None
    for _ in range(3):
        state = module(x, state)
    return list(state) if isinstance(state, tuple) else [state]


def whole(module: nn.Module, x: Tensor) -> list[Tensor]:
    output, states = module(x)
    return [output, *(states if isinstance(states, tuple) else (states,))]


def same(make: Callable[..., nn.Module], x: Tensor, run: Callable[[nn.Module, Tensor], list[Tensor]]) -> None:
    here, there = make(device="cpu"), make(device="cuda")
    there.load_state_dict(here.state_dict())
    for mine, others in zip(gradients(there, x.clone(), run), gradients(here, x.clone(), run), strict=True):
        torch.testing.assert_close(mine, others)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cell", CELLS)
def test_cells_have_the_cpus_values(session: Session, cell: type[nn.Module], bias: bool) -> None:
    same(lambda device: cell(5, 7, bias=bias, device=device), torch.randn(3, 5), three_steps)


@pytest.mark.parametrize(("layer", "options"), LAYERS)
def test_layers_without_cudnn_have_the_cpus_values(
    session: Session, without_cudnn: None, layer: type[nn.Module], options: dict[str, object]
) -> None:
    same(lambda device: layer(5, 7, device=device, **options), torch.randn(3, 4, 5), whole)


def test_a_gradients_gradient(session: Session, without_cudnn: None) -> None:
    here, found = nn.LSTM(5, 7), []
    there = nn.LSTM(5, 7, device="cuda")
    there.load_state_dict(here.state_dict())
    x = torch.randn(3, 4, 5)
    with torch.backends.mkldnn.flags(enabled=False):  # whose layers have no second gradient
        for module in (here, there):
            given = x.detach().clone().to(module.weight_ih_l0.device).requires_grad_()
            (first,) = torch.autograd.grad(module(given)[0].sum(), given, create_graph=True)
            (first * first).sum().backward()
            found.append(given.grad.cpu())
    torch.testing.assert_close(*found)


def launches(program: Callable[[], None], no_data: bool) -> Counter[str]:
    with windtunnel.emulate("V100", no_data=no_data) as session:
        program()
    return Counter(row.signature.name for row in session.trace if row.signature.name.startswith("aten::_thnn"))


@pytest.mark.parametrize("no_data", [False, True])
@pytest.mark.parametrize(
    ("make", "forward", "backward"),
    [
        (nn.LSTMCell, "aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_lstm_cell_backward_impl"),
        (nn.GRUCell, "aten::_thnn_fused_gru_cell", "aten::_thnn_fused_gru_cell_backward"),
    ],
)
def test_a_step_is_one_fused_kernel(make: type[nn.Module], forward: str, backward: str, no_data: bool) -> None:
    def program() -> None:
        found = make(5, 7, device="cuda")(torch.randn(3, 5, device="cuda"))
        (found[0] if isinstance(found, tuple) else found).sum().backward()

    assert launches(program, no_data) == {forward: 1, backward: 1}


def test_half_precision_is_computed_in_float32(session: Session) -> None:
    cell = nn.LSTMCell(64, 64, device="cuda", dtype=torch.float16)
    x = torch.randn(8, 64, dtype=torch.float16)
    exact = nn.LSTMCell(64, 64)
    exact.load_state_dict(cell.cpu().float().state_dict())
    found = cell.half().cuda()(x.cuda())
    for mine, others in zip(found, exact(x.float()), strict=True):
        torch.testing.assert_close(mine.cpu().float(), others, atol=2e-3, rtol=2e-3)


def test_states_of_the_wrong_size_are_refused_as_pytorch_does(session: Session) -> None:
    cell = nn.LSTMCell(5, 7, device="cuda")
    with pytest.raises(RuntimeError, match="input has inconsistent input_size: got 4 expected 5"):
        cell(torch.randn(3, 4, device="cuda"))
