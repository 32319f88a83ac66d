"""No thread of a program notices that all its objects are looked at."""

from __future__ import annotations

import gc
import sys
import threading

import pytest
import torch

from windtunnel.seam.living import at_once, living


def test_a_tuple_that_another_thread_fills_stays_that_threads_own() -> None:
    ballast = [[number] for number in range(50_000)]
    failures, done = list[Exception](), threading.Event()

    def fill() -> None:
        try:
            while not done.is_set():
                tuple(number for number in range(300))
        except SystemError as error:
            failures.append(error)

    thread = threading.Thread(target=fill)
    thread.start()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    tensor = torch.ones(1)
    try:
        for _ in range(10):
            assert any(found is tensor for found in living(torch.Tensor))
    finally:
        sys.setswitchinterval(before)
        done.set()
        thread.join()
    assert not failures
    assert len(ballast) == 50_000


@pytest.mark.parametrize("collecting", [True, False])
def test_the_collector_is_left_as_it_was(collecting: bool) -> None:
    (gc.enable if collecting else gc.disable)()
    try:
        assert at_once(gc.isenabled, dict) == [False, {}]
        assert gc.isenabled() == collecting
    finally:
        gc.enable()
