"""Sequences of different lengths: packed, padded, nested, and the losses on them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import windtunnel
from windtunnel.session import Session
from windtunnel.trace.operation import Kind


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_packed_sequences_train_as_on_the_cpu(kind: type[nn.RNNBase], session: Session) -> None:
    def gradients(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net, x = kind(4, 8, 2, bidirectional=True, batch_first=True), torch.randn(3, 5, 4)
        net, x = net.to(device), x.to(device)
        out, lengths = pad_packed_sequence(net(pack_padded_sequence(x, [5, 3, 2], batch_first=True))[0], True)
        assert lengths.tolist() == [5, 3, 2]
        assert lengths.device.type == "cpu"
        out.square().sum().backward()
        return [parameter.grad.cpu() for parameter in net.parameters()]

    torch.testing.assert_close(gradients("cuda"), gradients("cpu"))


def test_batch_sizes_lie_on_the_host_and_values_on_the_device(session: Session) -> None:
    packed = pack_sequence([torch.ones(2, 3, device="cuda"), torch.ones(1, 3, device="cuda")])
    assert packed.data.is_cuda
    assert packed.batch_sizes.device.type == "cpu"
    assert packed.to("cuda:1").data.device.index == 1


def test_lengths_on_a_device_are_refused_in_pytorchs_words(session: Session) -> None:
    with pytest.raises(RuntimeError, match="should be a 1D CPU int64 tensor, but got 1D cuda:0 Long tensor"):
        pack_padded_sequence(torch.ones(2, 2, 1, device="cuda"), torch.tensor([2, 1], device="cuda"))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_lengths_of_a_ctc_loss_lie_anywhere(where: str, mode: Callable[[], torch.no_grad], session: Session) -> None:
    scores, targets = torch.randn(10, 2, 5).log_softmax(-1), torch.tensor([[1, 2, 3, 4], [2, 2, 1, 1]])
    lengths = torch.tensor([10, 9]), torch.tensor([4, 3])
    expected = F.ctc_loss(scores, targets, *lengths)
    with mode():
        loss = F.ctc_loss(scores.cuda(), targets.cuda(), *(part.to(where) for part in lengths))
        assert loss.is_cuda
        torch.testing.assert_close(loss.cpu(), expected)


def test_a_padded_encoder_runs_beside_another_stream(session: Session) -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).cuda().eval()
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2], device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.ones(5).pin_memory().to("cuda", non_blocking=True)
    with torch.no_grad():
        assert encoder(torch.randn(2, 5, 16, device="cuda"), src_key_padding_mask=mask).is_cuda


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)])


def sparse() -> torch.Tensor:
    return torch.eye(3).to_sparse()


@pytest.mark.parametrize("make", [nested, sparse])
def test_what_has_parts_is_pinned_moved_and_watched(make: Callable[[], torch.Tensor], session: Session) -> None:
    pinned = make().pin_memory()
    assert pinned.is_pinned()
    tensor = pinned.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        doubled = tensor * 2
    doubled * 2
    assert "unsynchronized-access" in [finding.code for finding in session.findings()]


@pytest.mark.parametrize("make", [nested, sparse])
def test_what_has_parts_comes_back_late(make: Callable[[], torch.Tensor], session: Session) -> None:
    back = make().cuda().to("cpu", non_blocking=True)
    assert back.values().sum() == 0 if back.is_nested else back._values().sum() == 0
    torch.cuda.synchronize()
    assert (back.values() if back.is_nested else back._values()).unique().tolist() == [1.0]


def test_without_data_the_lengths_decide_a_packed_sequence_s_shape() -> None:
    with windtunnel.emulate("V100", no_data=True):
        packed = pack_padded_sequence(torch.randn(3, 5, 4, device="cuda"), [5, 3, 1], batch_first=True)
        assert (packed.data.shape, packed.data.device.type) == ((9, 4), "cuda")
        assert packed.batch_sizes.tolist() == [3, 2, 2, 1, 1]


def test_a_recurrent_layer_has_the_name_that_it_has_on_a_gpu(session: Session) -> None:
    net = nn.LSTM(4, 8).cuda()
    net(torch.ones(3, 2, 4, device="cuda"))[0].sum().backward()
    names = {record.signature.name for record in session.machine.trace if record.kind == Kind.KERNEL}
    assert {"aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"} <= names
    assert not [name for name in names if "mkldnn" in name or "cpu" in name]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("lists", [False, True])
def test_cudnn_computes_a_ctc_loss_of_short_integers(lists: bool, reduction: str, session: Session) -> None:
    scores = torch.randn(12, 3, 5).log_softmax(2)
    targets, lengths = torch.randint(1, 5, (9,)), (torch.full((3,), 12), torch.full((3,), 3))
    losses = []
    for device, dtype in (("cpu", torch.int64), ("cuda", torch.int32), ("cuda", torch.int64)):
        leaf = scores.detach().to(device).requires_grad_()
        given = [part.tolist() if lists else part.to(device, dtype) for part in lengths]
        place = "cpu" if lists and dtype is torch.int32 else device
        loss = F.ctc_loss(leaf, targets.to(place, dtype), *given, reduction=reduction)
        loss.sum().backward()
        losses.append((loss.detach().cpu(), leaf.grad.cpu()))
        nodes, node = [], loss.grad_fn
        while node is not None:
            nodes.append(node.name())
            node = next((after for after, _ in node.next_functions if after is not None), None)
        assert any(name.startswith("CudnnCtcLoss") for name in nodes) == (device == "cuda" and dtype is torch.int32)
    for other in losses[1:]:
        torch.testing.assert_close(other, losses[0])


def test_cudnn_gives_no_loss_where_no_alignment_exists(session: Session) -> None:
    scores = torch.zeros(2, 1, 3, device="cuda", requires_grad=True)
    loss = F.ctc_loss(scores, torch.tensor([1, 1], dtype=torch.int32), [2], [2], zero_infinity=True)
    loss.backward()
    assert loss.item() == 0
    assert scores.grad.count_nonzero().item() == 0


def test_a_ctc_loss_without_batch(session: Session) -> None:
    scores, targets = torch.randn(12, 5).log_softmax(1), torch.randint(1, 5, (3,))
    lengths = torch.tensor(12), torch.tensor(3)
    expected = F.ctc_loss(scores, targets, *lengths)
    for dtype in (torch.int32, torch.int64):
        given = (part.to("cuda", dtype) for part in (targets, *lengths))
        torch.testing.assert_close(F.ctc_loss(scores.cuda(), *given).cpu(), expected)
