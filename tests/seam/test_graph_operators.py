"""A graph's replay gives what the same work gives eagerly, whichever operators it is made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from windtunnel.session import Session

Work = Callable[[torch.Tensor], torch.Tensor]


def rotary(x: torch.Tensor) -> torch.Tensor:
    turned = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * torch.exp(torch.tensor(1j))
    return torch.view_as_real(turned).flatten(-2).type_as(x)


def attention(x: torch.Tensor) -> torch.Tensor:
    heads = x.view(2, 4, 2, 8).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


WORK: dict[str, Callable[[], Work]] = {
    "rotary": lambda: rotary,
    "attention": lambda: attention,
    "half attention": lambda: lambda x: attention(x.half()).float(),
    "gated": lambda: lambda x: F.silu(x) * x.flip(-1),
    "norm": lambda: nn.RMSNorm(16).cuda(),
    "encoder": lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0).cuda(),
    "lstm": lambda: (lambda lstm: lambda x: lstm(x)[0])(nn.LSTM(16, 8, batch_first=True).cuda()),
    "images": lambda: (lambda conv: lambda x: F.interpolate(conv(x[:, None]), scale_factor=2))(
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU()).cuda()
    ),
    "indices": lambda: lambda x: x.gather(-1, x.argsort(-1)).cumsum(-1) + x.topk(3).values.sum(-1, keepdim=True),
    "scattered": lambda: lambda x: torch.zeros_like(x).scatter_add_(-1, x.argsort(-1), x),
    "embedding": lambda: (lambda table: lambda x: table(x.abs().long() % 7))(nn.Embedding(7, 3).cuda()),
    "spectrum": lambda: lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2),
    "half spectrum": lambda: lambda x: torch.fft.rfft(x.half()).abs().float(),
    "products": lambda: lambda x: torch.einsum("bij,bkj->bik", x, x) + torch.baddbmm(x[..., :4], x, x.mT),
    "bytes": lambda: lambda x: (x * 8).to(torch.uint8).view(torch.int8).to(torch.float8_e4m3fn).float(),
    "half only": lambda: (
        lambda x: F.avg_pool3d(F.smooth_l1_loss(x.half(), x.half() / 2, reduction="none")[None], 2).float()
    ),
    "pieces": lambda: lambda x: torch.cat([piece.mean(-1, keepdim=True) for piece in x.chunk(4, -1)], -1),
}


def replayed(work: Work, x: torch.Tensor) -> torch.Tensor:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work(x)
    x.copy_(torch.linspace(-2, 2, x.numel(), device="cuda").view_as(x).sin() * 3)
    graph.replay()
    return out


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", WORK)
def test_inference(name: str, mode: Callable[[], torch.no_grad], session: Session) -> None:
    torch.manual_seed(0)
    work = WORK[name]()
    if isinstance(work, nn.Module):
        work.eval()
    with mode():
        x = torch.randn(2, 4, 16, device="cuda")
        work(x)
        out = replayed(work, x)
        torch.testing.assert_close(out, work(x))


@pytest.mark.parametrize("name", ["attention", "half attention", "encoder", "images", "norm", "scattered"])
def test_training(name: str, session: Session) -> None:
    torch.manual_seed(0)
    work = WORK[name]()

    def gradient(x: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(work(leaf).square().sum(), leaf)[0]

    x = torch.randn(2, 4, 16, device="cuda")
    gradient(x)
    torch.testing.assert_close(replayed(gradient, x), gradient(x))


def test_dropout_in_attention_draws_anew_at_each_replay(session: Session) -> None:
    x = torch.randn(1, 1, 8, 8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
    seen = []
    for _ in range(2):
        graph.replay()
        seen.append(out.clone())
    assert not torch.equal(*seen)


def test_a_bad_index_in_a_replay_is_a_device_side_assert(session: Session) -> None:
    table, index = torch.randn(4, 2, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        table[index]
    index.fill_(9)
    graph.replay()
    with pytest.raises(RuntimeError, match="device-side assert triggered"):
        torch.cuda.synchronize()


@pytest.mark.parametrize("kind", [torch.optim.RAdam, torch.optim.Rprop, torch.optim.NAdam])
def test_numbers_that_operators_make_on_the_way_stay_with_the_graph(
    kind: type[torch.optim.Optimizer], session: Session
) -> None:
    def losses(graphed: bool) -> list[float]:
        torch.manual_seed(0)
        net, x = nn.LSTM(8, 8, batch_first=True).cuda(), torch.randn(4, 5, 8, device="cuda")
        optimizer = kind(net.parameters(), lr=0.01, capturable=True)  # type: ignore[call-arg]

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(x)[0].square().mean()
            loss.backward()
            optimizer.step()
            return loss

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            step()
        torch.cuda.synchronize()
        if not graphed:
            return [step().item() for _ in range(3)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        found = []
        for _ in range(3):
            graph.replay()
            found.append(loss.item())
        return found

    assert losses(graphed=True) == pytest.approx(losses(graphed=False), rel=1e-4)


def test_pools_that_are_asked_for_are_numbered_together(session: Session) -> None:
    handle, pool = torch.cuda.graph_pool_handle(), torch.cuda.MemPool()
    assert (handle[0], pool.id[0]) == (0, 0)
    assert handle[1] != pool.id[1]
