"""What a long run says in each of its steps takes one place."""

from __future__ import annotations

import torch

from windtunnel.session import emulate
from windtunnel.trace.operation import Kind


def test_steps_share_their_note() -> None:
    with emulate("V100") as session:
        weight = torch.ones(4, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.grad = torch.ones(4, device="cuda")
        for _ in range(20):
            optimizer.step()
    kinds = session.trace.rows.column(0)
    assert kinds.count(Kind.STEP) == kinds.count(Kind.NOTE) == 20
    assert len(session.trace.notes) <= 2
