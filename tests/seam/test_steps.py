"""Optimizer steps as rows of the trace, and remarks on those that update one tensor at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch.optim import optimizer as optimizers

from windtunnel import emulate
from windtunnel.trace.operation import Kind


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


def test_a_step_over_all_tensors_at_once_says_what_a_fused_one_would_move():
    with emulate("1xV100") as session:
        train("cuda", 2)
    detail = dict(session.trace.notes[-1].detail)
    parameters = sum(weight.numel() for weight in torch.nn.Linear(4, 4).parameters())
    assert detail["foreach"] == 1
    assert detail["fused_bytes"] == 2 * 4 * 4 * parameters  # parameter, gradient, two moments: read and written


class Container(torch.optim.Optimizer):
    """An optimizer that steps another one, as torchtitan has it."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups[0]["params"], {})
        self.inner = inner

    def step(self, closure=None):
        """The inner one's step."""
        self.inner.step()


def test_an_optimizer_made_of_others_is_one_step():
    with emulate("1xV100") as session:
        net = torch.nn.Linear(4, 4).cuda()
        optimizer = Container(torch.optim.Adam(net.parameters()))
        for _ in range(2):
            net(torch.ones(2, 4, device="cuda")).sum().backward()
            optimizer.step()
    assert [record.value for record in session.trace if record.kind == Kind.STEP] == [1, 2]


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


def test_a_step_counts_only_the_kernels_of_its_own_thread():
    def step_beside(work: Callable[[], object]) -> int:
        with emulate("1xV100") as session:
            net = torch.nn.Linear(4, 4).cuda()
            optimizer = torch.optim.SGD(net.parameters(), 0.1, foreach=False)
            net(torch.ones(2, 4, device="cuda")).sum().backward()
            hook = optimizer.register_step_post_hook(lambda *_: run_in_thread(work))
            optimizer.step()
            hook.remove()
        (note,) = (note for note in session.trace.notes if note.code == "unfused-optimizer")
        return int(dict(note.detail)["kernels"])

    def run_in_thread(work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    alone = step_beside(lambda: None)
    assert step_beside(lambda: [torch.ones(4, device="cuda").add_(1) for _ in range(5)]) == alone == 2
