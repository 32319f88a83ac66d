"""`--async stale`: a reader that is not ordered after a write gets the bytes from before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import understudy
from understudy.session import Session


@pytest.fixture
def stale() -> Iterator[Session]:
    """A V100 whose unordered readers are early."""
    with understudy.emulate("V100", async_copies="stale") as emulated:
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
