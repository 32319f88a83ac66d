"""A step of a model, run without data on an emulated GPU after a warm-up, with the time by the program's own clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch

from windtunnel import emulate
from windtunnel.session import Session
from windtunnel.trace.trace import Trace


class Step(NamedTuple):
    """Milliseconds of a step, the band of the run so far, the trace, and the step's rows of it."""

    ms: float
    band: float | None
    trace: Trace
    begin: int
    end: int


def emulated(gpu: str, cuda: str, host: str = "reference") -> AbstractContextManager[Session]:
    """A GPU on which programs run without data; most figures were published of servers and desktops of one's own."""
    return emulate(gpu, no_data=True, assume=1.0, cuda_version=cuda, host=host)


def timed(step: Callable[[], object], session: Session, warm_up: int = 1) -> Step:
    """A step after a warm-up, for which the program waits, as benchmarks do."""
    for _ in range(warm_up):
        step()
    torch.cuda.synchronize()
    at, begin = len(session.trace), time.perf_counter_ns()
    step()
    torch.cuda.synchronize()
    ms = (time.perf_counter_ns() - begin) / 1e6
    return Step(ms, session.machine.band(), session.trace, at, len(session.trace))
