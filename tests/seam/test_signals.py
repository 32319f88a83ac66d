"""Signal handlers of the program run between operators, wherever in an operator the signal came."""

from __future__ import annotations

import gc
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from time import perf_counter
from types import FrameType
from typing import Any

import pytest
import torch

import windtunnel
from windtunnel.seam.sites import OURS
from windtunnel.session import Session


class Stopped(BaseException):
    """What a handler raises."""


@pytest.fixture
def raising(session: Session) -> Iterator[list[str]]:
    """SIGUSR1 raises; the files whose frames its handler was given."""
    files: list[str] = []

    def stop(number: int, frame: FrameType | None) -> None:
        files.append(frame.f_code.co_filename if frame is not None else "")
        raise Stopped

    before = signal.signal(signal.SIGUSR1, stop)
    yield files
    signal.signal(signal.SIGUSR1, before)


WATCH = """
def watch(frame, event, argument):
    mine = frame.f_code.co_filename.startswith(ours)
    count[0] -= mine
    if mine and count[0] == 0:
        raise_signal(SIGUSR1)
"""


def signalled_after(calls: int, work: Callable[[], object]) -> tuple[int, bool]:
    """Run `work`, with a signal at our `calls`-th call or return: how many were left, and whether it raised.

    The watching function passes for one of ours, so that the signal comes in the middle of whatever is running.
    """
    names: dict[str, Any] = {"count": [calls], "raise_signal": signal.raise_signal, "SIGUSR1": signal.SIGUSR1}
    names |= {"ours": OURS, "__name__": "windtunnel.machine.watch"}
    exec(compile(WATCH, f"{OURS}machine/watch.py", "exec"), names)
    raised = False
    gc.disable()  # a collection in the middle would bring the signal into the end of some other object
    try:
        try:
            sys.setprofile(names["watch"])
            work()
        finally:
            sys.setprofile(None)
    except Stopped:
        raised = True
    finally:
        gc.enable()
    return names["count"][0], raised


def elementwise() -> None:
    x = torch.ones(1000, device="cuda")
    y = x * 2 + 1
    del x
    y.add_(1).sum().item()


def training() -> None:
    layer = torch.nn.Linear(8, 8, device="cuda")
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(4, 8, device="cuda")).square().mean().backward()
    optimizer.step()


def allocations() -> None:
    kept = [torch.empty(size, device="cuda") for size in (100, 5000, 300_000, 7)]
    kept.pop(1)
    kept.pop(0)
    torch.cat([kept[0][:10], kept[1]])


def copies() -> None:
    host = torch.ones(100).pin_memory()
    with torch.cuda.stream(torch.cuda.Stream()):
        there = host.to("cuda", non_blocking=True)
        there.record_stream(torch.cuda.current_stream())
    there.cpu()


WORK = (elementwise, training, allocations, copies)


@pytest.mark.long
@pytest.mark.parametrize("work", WORK)
def test_a_handler_that_raises_anywhere_leaves_the_books_whole(work: Callable[[], None], raising: list[str]) -> None:
    dice = random.Random(work.__name__)
    work()
    gc.collect()
    left, _ = signalled_after(sys.maxsize, work)
    calls = sys.maxsize - left
    base = torch.cuda.memory_allocated()
    for _ in range(8):
        left, raised = signalled_after(dice.randrange(1, calls), work)
        assert raised or left > 0  # the rest of the last calls is the end of the watching itself
        assert not any(file.startswith(OURS) for file in raising)
        gc.collect()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == base
    work()
    kept = [torch.empty(5000, device="cuda") for _ in range(200)]
    places = sorted(tensor.data_ptr() for tensor in kept)
    assert all(later - former >= 20_000 for former, later in pairwise(places))


def test_a_signal_while_a_tensor_is_freed_reaches_the_program(raising: list[str]) -> None:
    """An exception within what a tensor's end calls would be swallowed."""

    def free() -> None:
        tensor = torch.ones(10, device="cuda")
        del tensor

    left, _ = signalled_after(sys.maxsize, free)
    outcomes = [signalled_after(calls, free) for calls in range(1, sys.maxsize - left, 3)]
    assert all(raised for left, raised in outcomes if left <= 0)


def test_several_signals_in_one_operator_are_all_handled(session: Session) -> None:
    seen: list[int] = []
    numbers = signal.SIGUSR1, signal.SIGUSR2
    before = [signal.signal(number, lambda number, frame: seen.append(number)) for number in numbers]
    source = WATCH.replace("raise_signal(SIGUSR1)", "[raise_signal(number) for number in numbers]")
    names: dict[str, Any] = {"count": [40], "raise_signal": signal.raise_signal, "numbers": numbers, "ours": OURS}
    names["__name__"] = "windtunnel.machine.watch"
    exec(compile(source, f"{OURS}machine/watch.py", "exec"), names)
    x = torch.ones(10, device="cuda")
    sys.setprofile(names["watch"])
    for _ in range(20):
        x = x * 2
    sys.setprofile(None)
    assert sorted(seen) == sorted(numbers)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def sleeping_in_a_library() -> None:
    """Real seconds: launchers of ranks watch them in a loop like this."""
    exec("import time\ntime.sleep(20)", {"__name__": "torch.distributed.elastic.agent"})


def joining_a_thread() -> None:
    thread = threading.Thread(target=threading.Event().wait, args=[20], daemon=True)
    thread.start()
    thread.join()


@pytest.mark.parametrize("wait", [lambda: threading.Event().wait(20), sleeping_in_a_library, joining_a_thread])
def test_a_wait_is_interrupted_at_once(wait: Callable[[], object], raising: list[str]) -> None:
    timer = threading.Timer(0.1, signal.pthread_kill, [threading.main_thread().ident, signal.SIGUSR1])
    timer.start()
    begun = perf_counter()
    with pytest.raises(Stopped):
        wait()
    assert perf_counter() - begun < 10
    timer.join()


def test_the_program_sees_its_own_handlers() -> None:
    def early(number: int, frame: FrameType | None) -> None: ...

    def late(number: int, frame: FrameType | None) -> None: ...

    interrupt = signal.getsignal(signal.SIGINT)
    before = signal.signal(signal.SIGUSR1, early)
    with windtunnel.emulate("1"):
        assert signal.getsignal(signal.SIGINT) is interrupt
        assert signal.getsignal(signal.SIGUSR1) is early
        assert signal.signal(signal.SIGUSR1, late) is early
        assert signal.signal(signal.SIGUSR1, signal.SIG_IGN) is late
        assert signal.signal(signal.SIGUSR1, late) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGUSR1) is late
    assert signal.signal(signal.SIGUSR1, before) is late
    assert signal.getsignal(signal.SIGINT) is interrupt
