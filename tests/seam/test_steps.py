"""Optimizer steps as rows of the trace, and remarks on those that update one tensor at a time."""

from __future__ import annotations

import torch
from torch.optim import optimizer as optimizers

from understudy import emulate
from understudy.trace.operation import Kind


def train(device: str, steps: int, **options):
    net = torch.nn.Linear(4, 4).to(device)
    optimizer = torch.optim.Adam(net.parameters(), **options)
    for _ in range(steps):
        net(torch.ones(2, 4, device=device)).sum().backward()
        optimizer.step()


def test_each_step_is_a_row_at_its_line():
    with emulate("1xV100") as session:
        train("cuda", 3)
    steps = [record for record in session.trace if record.kind == Kind.STEP]
    assert [record.value for record in steps] == [1, 2, 3]
    assert {record.site.function for record in steps} == {"train"}
    assert session.trace.notes == []


def test_steps_on_the_cpu_are_not_the_devices():
    with emulate("1xV100") as session:
        train("cpu", 3)
    assert not [record for record in session.trace if record.kind == Kind.STEP]


def test_a_step_that_loops_over_tensors_is_remarked_on():
    with emulate("1xV100") as session:
        train("cuda", 2, foreach=False)
    first, second = session.trace.notes
    detail = dict(first.detail)
    assert first.code == second.code == "unfused-optimizer"
    assert (detail["optimizer"], detail["parameters"]) == ("Adam", 2)
    assert int(detail["kernels"]) > 10


def test_a_fused_step_is_not():
    with emulate("1xV100") as session:
        train("cuda", 2, foreach=False, fused=True)
    assert session.trace.notes == []


def test_nothing_is_watched_afterwards():
    before = dict(optimizers._global_optimizer_post_hooks)
    with emulate("1xV100"):
        assert len(optimizers._global_optimizer_post_hooks) == len(before) + 1
    assert dict(optimizers._global_optimizer_post_hooks) == before
