"""The modelled clock under all its names, whenever a program's modules took them."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

import windtunnel

SOURCE = """
from datetime import datetime
from time import monotonic, perf_counter, perf_counter_ns, sleep, time
from timeit import default_timer as timer

def measure(work):
    begins = timer(), perf_counter(), monotonic(), time(), perf_counter_ns() / 1e9
    dates = datetime.now(), datetime.utcnow(), datetime.today()
    work()
    sleep(50)
    ends = timer(), perf_counter(), monotonic(), time(), perf_counter_ns() / 1e9
    later = datetime.now(), datetime.utcnow(), datetime.today()
    seconds = [end - begin for begin, end in zip(begins, ends)]
    return seconds + [(end - begin).total_seconds() for begin, end in zip(dates, later)]
"""


def imported(name: str) -> ModuleType:
    module = ModuleType(name)
    exec(compile(SOURCE, f"{name}.py", "exec"), module.__dict__)
    sys.modules[name] = module
    return module


@pytest.fixture
def before() -> Iterator[ModuleType]:
    module = imported("program_that_times_itself")
    yield module
    del sys.modules[module.__name__]


def work() -> None:
    x = torch.ones(64, 64, device="cuda")
    for _ in range(20):
        x = x @ x
    torch.cuda.synchronize()


def test_a_clock_that_was_imported_before_the_emulation_is_modelled(before: ModuleType) -> None:
    stock = before.perf_counter
    real = time.perf_counter()
    with windtunnel.emulate("H100") as session:
        begin = session.machine.host.now_ns
        found = before.measure(work)
        modelled = (session.machine.host.now_ns - begin) / 1e9
    assert time.perf_counter() - real < 50
    assert found == pytest.approx([modelled] * len(found), rel=1e-3)
    assert before.perf_counter is stock
    assert before.sleep is time.sleep


def test_dates_are_dates(before: ModuleType) -> None:
    with windtunnel.emulate("H100"):
        here = before.datetime.now()
        there = before.datetime.now(datetime.UTC)
        assert abs((here.astimezone(datetime.UTC) - there).total_seconds()) < 1
        assert abs(there.timestamp() - time.time()) < 60
        assert isinstance(here, datetime.datetime)
    assert abs(before.datetime.now().timestamp() - time.time()) < 60


def test_what_the_standard_library_took_stays_real(before: ModuleType) -> None:
    import threading

    with windtunnel.emulate("H100"):
        assert not threading.Event().wait(0.01)  # by threading's own name of time.monotonic
        assert before.time is not vars(threading)["_time"]


def test_what_measures_this_machine_stays_real() -> None:
    """Hypothesis times garbage collections by a name that it took, amid whatever the program does."""
    module = imported("psutil.of_a_test")
    stock = module.monotonic
    try:
        with windtunnel.emulate("H100"):
            assert module.monotonic is stock
    finally:
        del sys.modules[module.__name__]
