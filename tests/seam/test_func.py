"""`torch.func`'s transforms, flex attention and torch.fx see the device inside the function that they transform."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from windtunnel.session import Session


def test_a_batched_tensor_says_where_it_is(session: Session) -> None:
    def shifted(row: Tensor) -> Tensor:
        assert (str(row.device), row.is_cuda) == ("cuda:1", True)
        return row + torch.ones(3, device=row.device)

    x = torch.zeros(5, 3, device="cuda:1")
    assert vmap(shifted)(x).sum().item() == 15
    assert str(jvp(shifted, (x[0],), (x[0],))[1].device) == "cuda:1"
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        vmap(lambda row: row + torch.ones(3))(x)


def test_a_gradient_comes_back_to_its_device(session: Session) -> None:
    def loss(x: Tensor) -> Tensor:
        assert str(x.device) == "cuda:0"
        return (x.to("cuda:1") ** 2).sum()

    found = grad(loss)(torch.ones(3, device="cuda:0"))
    assert (str(found.device), found.tolist()) == ("cuda:0", [2, 2, 2])


def test_zeros_for_an_input_without_gradient_lie_where_it_does(session: Session) -> None:
    """C++ makes them of nothing: an empty part of `cat` has no gradient of its own, nor has one that is not used."""
    empty, x = torch.zeros(0, device="cuda:1"), torch.ones(3, device="cuda:1")
    for found in grad(lambda *parts: torch.cat(parts).sum(), (0, 1))(empty, empty):
        assert (found.device, found.shape) == (empty.device, (0,))
    for found in (grad(lambda x: x.detach().sum())(x), vmap(grad(grad(lambda x: 3.0 * x)))(x)):
        assert (str(found.device), found.tolist()) == ("cuda:1", [0, 0, 0])


def test_zeros_for_an_output_without_gradient_lie_where_it_does(session: Session) -> None:
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return x * 2, x * 3

        @staticmethod
        def setup_context(ctx: object, inputs: object, output: object) -> None:
            pass

        @staticmethod
        def backward(ctx: object, *grads: Tensor) -> Tensor:  # type: ignore[override]
            assert [str(one.device) for one in grads] == ["cuda:1", "cuda:1"]
            return grads[0] * 2 + grads[1] * 3

    def loss(x: Tensor) -> Tensor:
        return Both.apply(x)[0].sum()  # type: ignore[no-any-return, no-untyped-call]

    found = grad(loss)(torch.ones(3, device="cuda:1"))
    assert (str(found.device), found.tolist()) == ("cuda:1", [2, 2, 2])


def test_gradients_of_each_sample(session: Session) -> None:
    model = nn.Linear(3, 1).cuda()

    def loss(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        out: Tensor = functional_call(model, parameters, (row[None],)).sum()
        return out

    found = vmap(grad(loss), in_dims=(None, 0))(dict(model.named_parameters()), torch.ones(4, 3, device="cuda"))
    assert found["weight"].shape == (4, 1, 3)
    assert found["weight"].is_cuda


def test_flex_attention_with_captured_tensors(session: Session) -> None:
    q = torch.ones(1, 2, 128, 8, device="cuda")
    bias = torch.zeros(2, device="cuda")
    document = torch.arange(128, device="cuda") // 64
    mask = create_block_mask(lambda b, h, i, j: document[i] == document[j], None, None, 128, 128, device="cuda")
    assert flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + bias[h], block_mask=mask).is_cuda
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + bias.cpu()[h])
    with pytest.raises(ValueError, match="Expected query, key, and value to have the same device type"):
        flex_attention(q, q.cpu(), q.cpu())


def test_symbolic_traces_follow_a_device(session: Session) -> None:
    class Moves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.ones(3).to(x.device) + torch.zeros(3, device=torch.device("cuda", 0))

    assert torch.fx.symbolic_trace(Moves())(torch.ones(3, device="cuda")).tolist() == [2, 2, 2]


def test_flex_attention_that_is_not_compiled_cannot_be_captured(session: Session) -> None:
    """It makes a number on the host and copies it (`_math_attention_inner`)."""
    q = torch.zeros(1, 2, 128, 8, device="cuda")
    q @ q.mT  # makes cuBLAS's handle, which a capture may not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        with pytest.raises(RuntimeError, match="Cannot copy between CPU and CUDA tensors during CUDA graph capture"):
            flex_attention(q, q, q)
        with pytest.raises(RuntimeError, match="operation failed due to a previous error during capture"):
            graph.capture_end()


@pytest.mark.parametrize("levels", [1, 2])
def test_a_tensor_is_shown_inside_vmap_while_streams_are_watched(levels: int, session: Session) -> None:
    x = torch.arange(12.0, device="cuda").reshape(2, 2, 3)
    shown: list[str] = []

    def work(row: torch.Tensor) -> torch.Tensor:
        shown.append(repr(row))
        return row * 2

    work_line = work.__code__.co_firstlineno + 1
    side = torch.cuda.Stream()
    for _ in range(levels):
        work = vmap(work)
    with torch.cuda.stream(side):
        assert work(x).sum().item() == 132
    assert shown[0].startswith(f"BatchedTensor(lvl={levels}, bdim=0, value=")
    read = {hazard.second.line for hazard in session.trace.hazards if hazard.code == "unsynchronized-access"}
    assert work_line in read
