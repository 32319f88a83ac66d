"""Signal handlers of the program run between operators, wherever in an operator the signal came."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from time import perf_counter
from types import FrameType
from typing import Any

import pytest
import torch
from signals import WATCH, WORK, Stopped, handled, series, signalled_after, stop

import windtunnel
from windtunnel.seam import signals
from windtunnel.seam.sites import OURS
from windtunnel.session import Session


@pytest.fixture
def raising(session: Session) -> Iterator[list[str]]:
    """SIGUSR1 raises; the files whose frames its handler was given."""
    with handled(stop) as files:
        yield files


@pytest.mark.long
def test_a_handler_that_raises_or_works_anywhere_breaks_nothing(session: Session) -> None:
    came, wrong = series(40, 7)
    assert wrong == []
    assert len(came) == len(WORK)


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


def test_a_signal_while_another_one_is_looked_at_is_handled_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python calls the handler of a second signal between two instructions of the first one's."""
    called: list[int] = []
    handler = signals.Deferring(lambda number, frame: called.append(int(number)))

    class Looked(int):
        def __eq__(self, other: object) -> bool:
            if len(signals._PENDING) == 1:
                handler(signal.SIGUSR2, None)
            return int(self) == other

        __hash__ = int.__hash__

    scheduled: list[object] = []
    monkeypatch.setattr(signals, "caller_of_ours", lambda frame: sys._getframe())
    monkeypatch.setattr(signals, "_call_at_next_step", scheduled.append)
    handler(signal.SIGUSR1, None)
    handler(Looked(signal.SIGCHLD), None)
    assert len(scheduled) == 1
    signals._call_pending(sys._getframe())
    assert called == [signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD]
