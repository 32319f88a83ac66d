"""What a fix saves, by replay: the promise is held to the same program with the fix applied."""

from __future__ import annotations

import pytest

from understudy import emulate
from understudy.analysis.savings import Savings
from understudy.session import Session

STEPS = 12


def train(data: object, *, pinned: bool, read: bool, foreach: bool | None, width: int = 64) -> None:
    import torch

    net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(6))).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, foreach=foreach)
    for _ in range(STEPS):
        x = torch.empty(256, width, pin_memory=pinned).to("cuda", non_blocking=pinned)
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        float(loss) if read else loss.detach()


def run(**options: object) -> Session:
    with emulate("V100", no_data=True, assume=0.0) as session:
        train(None, **{"pinned": True, "read": False, "foreach": None, **options})  # type: ignore[arg-type]
    return session


def step_ns(session: Session) -> float:
    return Savings(session.trace.canonical()).before.length_ns


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("unfused-optimizer", {"foreach": False}),
        ("pageable-copy", {"pinned": False, "width": 4096}),
        ("host-sync", {"read": True, "width": 256}),
    ],
)
def test_a_promise_is_kept(code: str, options: dict[str, object]) -> None:
    slow = run(**options)
    fixed = run(width=options.get("width", 64))
    promised = next(one for one in slow.findings() if one.code == code).saved_share
    assert promised is not None
    saved = 1.0 - step_ns(fixed) / step_ns(slow)
    assert saved > 0.002
    assert saved / 1.5 < promised < 1.5 * saved


def test_without_a_change_the_replay_is_the_run() -> None:
    session = run()
    trace = session.trace.canonical()
    steps = [row for row in trace.rows if row[0] == 10]
    assert step_ns(session) == pytest.approx((steps[-1][4] - steps[0][4]) / (len(steps) - 1), rel=0.02)
