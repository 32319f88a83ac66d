"""Threads of a program's own: a short, seeded part of `make test-threads`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from threads import checkpoints, stress, together

from understudy.session import Session


@pytest.mark.parametrize("seed", [0, 1])
def test_threads_find_their_values_and_the_books_are_in_order(seed: int) -> None:
    stress(seed)


def test_asynchronous_checkpoints_under_four_threads_are_bit_equal(tmp_path: Path) -> None:
    assert checkpoints(tmp_path, 8) == 0


def test_backward_on_a_thread_runs_on_the_stream_of_that_threads_forward(session: Session) -> None:
    x = torch.ones(1 << 16, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()

    def work(number: int) -> None:
        # Both threads' nodes have the same numbers: each thread counts from zero.
        with torch.cuda.stream(side if number else torch.cuda.default_stream()):
            y = (x.detach().clone().requires_grad_() * 2).sum()
        before = session.machine.devices[0].streams[side.stream_id].epoch
        y.backward()
        after = session.machine.devices[0].streams[side.stream_id].epoch
        grew[number] = after > before

    grew = [False, False]
    for number in (1, 0):
        together(1, lambda _, number=number: work(number))  # type: ignore[misc]
    assert grew == [False, True]
