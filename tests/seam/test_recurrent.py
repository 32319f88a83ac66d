"""Recurrent layers on a device: one operator of cuDNN each way, with the CPU's numbers and cuDNN's conditions."""

from __future__ import annotations

import copy
import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import windtunnel
from windtunnel.seam.torch.kernels.recurrent_space import pieces
from windtunnel.session import Session
from windtunnel.trace.operation import Kind

KINDS = [nn.LSTM, nn.GRU, nn.RNN]
Kernels = list[str]


def kernels(session: Session, since: int = 0) -> Kernels:
    """The names of all kernels so far."""
    records = list(session.machine.trace)[since:]
    return [record.signature.name for record in records if record.kind == Kind.KERNEL]


def train(device: str, net: nn.RNNBase, x: torch.Tensor, states: Any, packed: bool) -> list[torch.Tensor]:
    """Results and gradients of one training step of a copy of the layer."""
    net, x = copy.deepcopy(net).to(device), x.to(device).requires_grad_()
    if isinstance(net, nn.LSTM):
        states = None if states is None else tuple(t.detach().to(device).requires_grad_() for t in states)
    else:
        states = None if states is None else states[0].detach().to(device).requires_grad_()
    words: Any = pack_padded_sequence(x, [4, 3, 1], batch_first=net.batch_first) if packed else x
    out, after = net(words, states)
    out = pad_packed_sequence(out, batch_first=net.batch_first)[0] if packed else out
    after = after if isinstance(after, tuple) else (after,)
    (out.square().sum() + sum(state.sin().sum() for state in after)).backward()
    leaves = [x, *(() if states is None else states if isinstance(states, tuple) else (states,)), *net.parameters()]
    return [out.detach().cpu(), *(t.detach().cpu() for t in after), *(leaf.grad.cpu() for leaf in leaves)]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {}),
        (nn.LSTM, {"proj_size": 2}),
        (nn.GRU, {"num_layers": 1}),
        (nn.GRU, {"bias": False}),
        (nn.RNN, {"dtype": torch.float64}),
        (nn.RNN, {"nonlinearity": "relu", "num_layers": 3}),
    ],
    ids=str,
)
def test_numbers_and_gradients_are_the_cpus(kind: type[nn.RNNBase], options: dict[str, Any], session: Session) -> None:
    for first, both, packed in itertools.product((False, True), repeat=3):
        given = first != packed
        torch.manual_seed(0)
        net = kind(3, 5, **{"num_layers": 2, **options}, batch_first=first, bidirectional=both)
        dtype = options.get("dtype", torch.float32)
        x = torch.randn(*((3, 4) if first else (4, 3)), 3, dtype=dtype)
        sizes = net.num_layers * (1 + both), 3
        states = [torch.randn(*sizes, net.proj_size or 5, dtype=dtype), torch.randn(*sizes, 5, dtype=dtype)]
        before = len(session.machine.trace)
        found = train("cuda", net, x, states if given else None, packed)
        torch.testing.assert_close(found, train("cpu", net, x, states if given else None, packed))
        names = [name for name in kernels(session, before) if "rnn" in name or "lstm" in name]
        assert names == ["aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"]


@pytest.mark.parametrize("kind", KINDS)
def test_inference_is_one_operator_too(kind: Any, session: Session) -> None:
    net, words = kind(3, 4, 2, batch_first=True).cuda().eval(), torch.randn(5, 3)  # of one text without a batch
    expected = copy.deepcopy(net).cpu()(words)[0]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(net(words.cuda())[0].cpu(), expected)
    assert kernels(session).count("aten::_cudnn_rnn") == 2


@pytest.mark.parametrize("kind", KINDS)
def test_without_data_it_is_one_operator_with_shapes(kind: Any) -> None:
    with windtunnel.emulate("V100", no_data=True) as session:
        net = kind(3, 4, 2, batch_first=True, dropout=0.5, bidirectional=True).cuda()
        packed = pack_padded_sequence(torch.randn(3, 5, 3, device="cuda"), [5, 3, 1], batch_first=True)
        padded, lengths = pad_packed_sequence(net(packed)[0], batch_first=True)
        assert (padded.shape, lengths.tolist()) == ((3, 5, 8), [5, 3, 1])
        padded.sum().backward()
        assert net.weight_hh_l1.grad.shape == net.weight_hh_l1.shape
        names = kernels(session)
        assert names.count("aten::_cudnn_rnn") == names.count("aten::_cudnn_rnn_backward") == 1


def test_dropout_is_drawn_anew_and_its_gradient_is_of_the_same_draw(session: Session) -> None:
    net = nn.GRU(3, 4, 2, dropout=0.5).double().cuda()
    x = torch.randn(4, 2, 3, dtype=torch.float64, device="cuda", requires_grad=True)
    assert not torch.equal(net(x)[0], net(x)[0])

    def drawn(x: torch.Tensor) -> torch.Tensor:
        torch.cuda.manual_seed(1)
        out: torch.Tensor = net(x)[0]
        return out

    assert torch.equal(drawn(x), drawn(x))
    assert torch.autograd.gradcheck(drawn, (x,))
    before = len(session.machine.trace)
    drawn(x)
    net(x)
    assert [name for name in kernels(session, before) if name.startswith("aten::_")] == [
        "aten::_cudnn_init_dropout_state",
        "aten::_cudnn_rnn",
        "aten::_cudnn_rnn",
    ]


def test_errors_are_cudnns(session: Session) -> None:
    net, x = nn.LSTM(3, 4, 2).cuda(), torch.randn(5, 2, 3, device="cuda", requires_grad=True)
    with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
        net.eval()(x)[0].sum().backward()
    (gradient,) = torch.autograd.grad(net.train()(x)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="Double backwards is not supported for CuDNN RNNs"):
        gradient.sum().backward()
    state = torch.zeros(2, 2, 4, device="cuda").transpose(0, 1)
    with pytest.raises(RuntimeError, match="rnn: hx is not contiguous"):
        net(x, (state, state))
    with pytest.raises(RuntimeError, match="not the same dtype, found input tensor with Float and hidden tensor with"):
        net(x, (torch.zeros(2, 2, 4, device="cuda").double(),) * 2)


def test_without_cudnn_the_cells_run_and_have_second_derivatives(session: Session) -> None:
    net, x = nn.GRU(3, 4).cuda(), torch.randn(5, 2, 3, device="cuda", requires_grad=True)
    with torch.backends.cudnn.flags(enabled=False):
        (gradient,) = torch.autograd.grad(net(x)[0].sum(), x, create_graph=True)
        gradient.sum().backward()
    assert "aten::_cudnn_rnn" not in kernels(session)
    net.bfloat16()(x.bfloat16())  # which cuDNN takes from 9.13 on
    assert "aten::_cudnn_rnn" not in kernels(session)


@pytest.mark.parametrize(
    ("gpu", "cuda", "one"), [("A100", "13.0", True), ("A100", "12.8", False), ("T4", "13.0", False)]
)
def test_bfloat16_is_cudnns_with_a_wheel_that_carries_9_13_or_later(gpu: str, cuda: str, one: bool) -> None:
    with windtunnel.emulate(gpu, cuda_version=cuda) as session:
        net = nn.LSTM(3, 4).cuda().bfloat16()
        net(torch.randn(5, 2, 3, device="cuda", dtype=torch.bfloat16))[0].sum().backward()
        assert ("aten::_cudnn_rnn" in kernels(session)) is one


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_makes_it_float16(dtype: torch.dtype, kind: Any, session: Session) -> None:
    net, x = kind(3, 4, 2, bias=dtype == torch.float16).cuda(), torch.randn(5, 2, 3, device="cuda")
    with warnings.catch_warnings(), torch.autocast("cuda", dtype=dtype):
        warnings.simplefilter("error")
        out = net(x)[0]
    assert out.dtype == torch.float16
    assert out.grad_fn is not None
    assert out.grad_fn.name() == "CudnnRnnBackward0"
    out.sum().backward()
    gradients = [parameter.grad.half() for parameter in net.parameters()]
    net.zero_grad()
    net.half()(x.half())[0].sum().backward()
    torch.testing.assert_close(gradients, [parameter.grad for parameter in net.parameters()])


def test_weights_in_pieces_are_gathered_with_a_warning_at_the_call(session: Session) -> None:
    net, x = nn.GRU(3, 4, 2).cuda(), torch.randn(5, 2, 3, device="cuda")
    whole = torch.cuda.memory_allocated()
    expected = net(x)[0]
    whole = torch.cuda.memory_allocated() - whole
    copied = copy.deepcopy(net)
    before = torch.cuda.memory_allocated()
    with pytest.warns(UserWarning, match="not part of single contiguous chunk of memory") as caught:
        out = copied(x)[0]
    assert caught[0].filename.endswith("rnn.py")
    assert torch.equal(out, expected)
    assert torch.cuda.memory_allocated() - before == whole + 1024  # 228 numbers, kept for the backward pass
    copied.flatten_parameters()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(copied(x)[0], expected)


def test_weights_lie_in_cudnns_order_with_biases_in_any_case() -> None:
    """Matrices of all layers, then biases: 2 x (12 + 16) x 3 and 4 x 4 x 3 numbers for a GRU of 4 units."""
    weights = [torch.empty(12, 4), torch.empty(12, 4), torch.empty(12), torch.empty(12)] * 2
    place = pieces(weights, 4, 3, 4)
    assert place.offsets == [0, 48, 192, 204, 96, 144, 216, 228]
    assert place.numel == 240
    assert pieces([weights[0], weights[1]] * 2, 2, 3, 4).numel == 240


def test_gradients_of_weights_share_one_buffer_as_cudnns_do(session: Session) -> None:
    net = nn.LSTM(3, 4, 2).cuda()
    net(torch.randn(5, 2, 3, device="cuda"))[0].sum().backward()
    assert len({parameter.grad.untyped_storage()._cdata for parameter in net.parameters()}) == 1


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_trains_it_again_at_each_replay(kind: Any, dropout: float, session: Session) -> None:
    net, x = kind(3, 4, 2, dropout=dropout).cuda(), torch.randn(5, 2, 3, device="cuda")
    net(x)[0].sum().backward()  # dropout's state is made outside, as on CUDA
    net.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = net(x)[0]
        out.sum().backward()
    graph.replay()
    first = out.clone()
    if dropout:
        graph.replay()
        assert not torch.equal(first, out)
        return
    x.normal_()
    graph.replay()
    plain = kind(3, 4, 2)
    plain.load_state_dict(net.state_dict())
    expected = plain(x.cpu())[0]
    expected.sum().backward()
    torch.testing.assert_close(out.cpu(), expected.detach())
    torch.testing.assert_close([p.grad.cpu() for p in net.parameters()], [p.grad for p in plain.parameters()])


def test_scripts_and_traces_of_it_run(session: Session) -> None:
    net, x = nn.Sequential(nn.GRU(3, 4)).cuda().eval(), torch.randn(5, 2, 3, device="cuda")
    expected = net(x)[0]
    for made in (torch.jit.script(net), torch.jit.trace(net, (x,))):
        assert torch.equal(made(x)[0], expected)


def test_its_operations_are_those_of_its_matrices(session: Session) -> None:
    net, x = nn.LSTM(3, 4, 2, bidirectional=True).cuda(), torch.randn(5, 2, 3, device="cuda")
    net(x)[0].sum().backward()
    found = [record.signature.flops for record in session.machine.trace if "_rnn" in record.signature.name]
    forward = 2 * 10 * 2 * 16 * ((3 + 4) + (8 + 4))
    assert found == [forward, 2 * forward]


def test_backward_twice_and_without_all_gradients(session: Session) -> None:
    net, x = nn.LSTM(3, 4).cuda(), torch.randn(5, 2, 3, device="cuda")
    out = net(x)[0]
    out.sum().backward(retain_graph=True)
    once = net.weight_hh_l0.grad.clone()
    out.sum().backward()
    torch.testing.assert_close(net.weight_hh_l0.grad, 2 * once)
    net.zero_grad()
    net(x)[1][0].sum().backward()  # only the state's
    plain = nn.LSTM(3, 4)
    plain.load_state_dict(net.state_dict())
    plain(x.cpu())[1][0].sum().backward()
    torch.testing.assert_close(net.weight_ih_l0.grad.cpu(), plain.weight_ih_l0.grad)
