"""`--async stale`: a reader that is not ordered after a write gets the bytes from before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import windtunnel
from windtunnel.session import Session


@pytest.fixture
def stale() -> Iterator[Session]:
    """A V100 whose unordered readers are early."""
    with windtunnel.emulate("V100", async_copies="stale") as emulated:
        yield emulated


WAITS: dict[str, Callable[[torch.cuda.Stream], object]] = {
    "wait_stream": lambda s: s.wait_stream(torch.cuda.current_stream()),
    "event": lambda s: s.wait_event(torch.cuda.current_stream().record_event()),
    "stream synchronize": lambda s: torch.cuda.current_stream().synchronize(),
    "synchronize": lambda s: torch.cuda.synchronize(),
}


def test_the_documents_program_sums_what_was_there_before(stale: Session) -> None:
    s = torch.cuda.Stream()
    A = torch.empty((100, 100), device="cuda").normal_(0.0, 1.0)
    with torch.cuda.stream(s):
        B = torch.sum(A)
    torch.cuda.synchronize()
    assert B.item() == 0.0
    assert A.sum().item() != 0.0
    assert "unsynchronized-access" in [finding.code for finding in stale.findings()]


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_the_corrected_program_sums_the_new_values(wait: Callable[[torch.cuda.Stream], object], stale: Session) -> None:
    s = torch.cuda.Stream()
    A = torch.empty((100, 100), device="cuda").normal_(0.0, 1.0)
    wait(s)
    with torch.cuda.stream(s):
        B = torch.sum(A)
    torch.cuda.synchronize()
    assert B.item() == A.sum().item() != 0.0


def test_a_reader_sees_the_writes_that_it_waited_for(stale: Session) -> None:
    s = torch.cuda.Stream()
    x = torch.full((4,), 1.0, device="cuda")
    s.wait_stream(torch.cuda.current_stream())
    x.fill_(2.0)
    x.add_(1.0)
    with torch.cuda.stream(s):
        early = x * 10
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        late = x * 10
    torch.cuda.synchronize()
    assert (early.tolist(), late.tolist(), x.tolist()) == ([10.0] * 4, [30.0] * 4, [3.0] * 4)


def test_a_result_fetched_from_another_stream_is_early(stale: Session) -> None:
    s = torch.cuda.Stream()
    x = torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(s):
        x.fill_(7.0)
    assert x.item() == 1.0
    s.synchronize()
    assert x.item() == 7.0


def test_one_stream_is_in_order(stale: Session) -> None:
    torch.cuda.Stream()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = torch.randn(16, 4, device="cuda"), torch.randn(16, 1, device="cuda")
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


def test_by_default_values_are_those_of_program_order(session: Session) -> None:
    s = torch.cuda.Stream()
    x = torch.zeros(4, device="cuda").fill_(3.0)
    with torch.cuda.stream(s):
        y = x * 2
    torch.cuda.synchronize()
    assert y.tolist() == [6.0] * 4


ONE_STREAM: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flatten of a transposed view": lambda x: x.t().flatten(),
    "reshape": lambda x: x.t().reshape(-1, 3),
    "contiguous": lambda x: x.contiguous().t().contiguous(),
    "expand_as": lambda x: x[:1].expand_as(x).reshape(-1),
    "3-D by 2-D": lambda x: x.view(1, 4, 6) @ x.t(),
    "broadcast matmul": lambda x: torch.matmul(x.expand(3, 4, 6), x.t().expand(2, 3, 6, 4)),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "in place": lambda x: x.clone().add_(1).t_().mul_(2),
    "out": lambda x: torch.add(x, 1, out=torch.empty(0, device=x.device)),
    "out with overlap": lambda x: torch.cumsum(x, 0, out=torch.ones_like(x)),
    "evaluated dropout": lambda x: torch.nn.functional.dropout(x, 0.5, training=False) + 1,
    "as_strided": lambda x: torch.as_strided(x.clone(), (2, 2), (6, 2)).reshape(-1),
    "unfold": lambda x: torch.nn.functional.unfold(x.view(1, 1, 4, 6), 2),
    "pixel_shuffle": lambda x: torch.pixel_shuffle(x.view(1, 4, 2, 3), 2),
    "resized": lambda x: x.clone().resize_(2, 3) * 2,
    "convolution": lambda x: torch.nn.functional.conv1d(x.view(1, 4, 6), x[:, :4].reshape(4, 4, 1)),
}


@pytest.mark.parametrize("name", ONE_STREAM)
def test_programs_of_one_stream_compute_as_ever(name: str, stale: Session) -> None:
    values = torch.arange(24.0).view(4, 6)
    assert torch.equal(ONE_STREAM[name](values.cuda()).cpu(), ONE_STREAM[name](values))


def test_attention_on_one_stream_computes_as_ever(stale: Session) -> None:
    torch.manual_seed(0)
    attention, q = torch.nn.MultiheadAttention(8, 2), torch.randn(3, 1, 8)
    with torch.no_grad():
        expected = attention(q, q, q)[0]
        found = attention.cuda()(q.cuda(), q.cuda(), q.cuda())[0]
    assert torch.allclose(found.cpu(), expected, atol=1e-6)
