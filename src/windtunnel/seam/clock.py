"""The program's own clock: `time.time()` and its kin follow the modelled host, so its timings are the GPU's.

The standard library, PyTorch and ourselves keep real time: their timeouts wait for other processes and threads, which
are real. Who reads the clock decides it, by whatever name and whenever that was imported.
"""

from __future__ import annotations

import datetime
import sys
import time
import timeit
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import NamedTuple

from windtunnel.machine.clock import HostThread
from windtunnel.machine.machine import Machine
from windtunnel.seam.patching import Patch, imported
from windtunnel.seam.sites import Sites
from windtunnel.trace.operation import LIBRARYS_SLEEP, Kind

SECOND_NS = 1_000_000_000
READ_NS = 50
"""What reading the clock costs the host (a vDSO call; modelled)."""

POLL_NS = 20 * READ_NS
"""Two sleeps with no more than this between them have no operation between them."""
MOST_POLLS = 100
"""So many sleeps in a row wait for something outside, such as another process's lock on a file, which takes real time:
the following ones take it too, so that they are not modelled as hours."""
LONGEST_POLL_S = 0.1

CLOCKS = ("time", "monotonic", "perf_counter")
REAL = (sys.stdlib_module_names - {"timeit", "__main__"}) | {
    *("torch", "windtunnel", "tensorboard", "_pytest", "xdist"),
    *("IPython", "ipykernel", "jupyter_client", "tornado", "zmq", "traitlets", "comm", "debugpy"),
}
"""Packages whose calls are answered with real time."""
MEASURING = {"hypothesis", "psutil"}
"""What these took at their import measures this machine: garbage collections, the processor's share."""
PROGRAMS = (
    "windtunnel.experiments.",
    "windtunnel.measure.",
    "torch.utils.benchmark.",
    "windtunnel.seam.torch.cuda.timer",
    "windtunnel.seam.cuda_runtime.clocks",
)
"""But these modules are programs, which time what they do as a user's program does."""


def patches(machine: Machine, host: Callable[[], HostThread], sites: Sites) -> list[Patch]:
    """The functions of `time` that a program reads or waits with.

    The modelled clocks begin at the real ones' values, so that dates stay dates.
    """
    begin = {name: getattr(time, f"{name}_ns")() for name in CLOCKS}

    def modelled(name: str, frame: FrameType) -> int:
        thread = host()
        thread.advance(READ_NS)
        if sites.is_program(frame):
            machine.mark(thread, Kind.CLOCK_READ, name, thread.now_ns, sites.number(3))
        return int(begin[name]) + thread.now_ns

    def nanoseconds(name: str) -> Callable[[], int]:
        stock = getattr(time, f"{name}_ns")

        def clock_ns() -> int:
            frame = sys._getframe(1)
            return modelled(name, frame) if _is_modelled(frame) else stock()

        return clock_ns

    def seconds(name: str) -> Callable[[], float]:
        stock = getattr(time, name)

        def clock() -> float:
            frame = sys._getframe(1)
            return modelled(name, frame) / SECOND_NS if _is_modelled(frame) else stock()

        return clock

    perf_counter = seconds("perf_counter")
    found = [Patch(time, f"{name}_ns", nanoseconds(name)) for name in CLOCKS]
    found += [Patch(time, name, seconds(name)) for name in CLOCKS if name != "perf_counter"]
    found += [Patch(time, "perf_counter", perf_counter), Patch(timeit, "default_timer", perf_counter)]
    found.append(Patch(timeit.Timer.__init__, "__defaults__", _with_timer(perf_counter)))
    found.append(Patch(time, "sleep", _sleep(machine, host, sites)))
    found += _dates(lambda frame: modelled("time", frame))
    made = {id(getattr(owner, name)): value for owner, name, value in found if isinstance(owner, ModuleType)}
    return [*found, *imported(made, REAL | MEASURING | {"timeit"})]


def _dates(now_ns: Callable[[FrameType], int]) -> list[Patch]:
    """`datetime.now()` and `utcnow()`: the class is C's and reads a clock of its own; `today()` asks `time.time()`."""

    def replaced(name: str, read: Callable[..., datetime.datetime]) -> Patch:
        stock = vars(datetime.datetime)[name]

        def method(cls: type[datetime.datetime], /, *args: object, **kwargs: object) -> datetime.datetime:
            frame = sys._getframe(1)
            if not _is_modelled(frame):
                return stock.__get__(None, cls)(*args, **kwargs)  # type: ignore[no-any-return]
            return read(cls, now_ns(frame) / SECOND_NS, *args, **kwargs)

        method.__name__ = name
        return Patch(datetime.datetime, name, classmethod(method))

    def now(cls: type[datetime.datetime], seconds: float, tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return cls.fromtimestamp(seconds, tz)

    def utcnow(cls: type[datetime.datetime], seconds: float) -> datetime.datetime:
        return cls.fromtimestamp(seconds, datetime.UTC).replace(tzinfo=None)

    return [replaced("now", now), replaced("utcnow", utcnow)]


def _is_modelled(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] not in REAL or name.startswith(PROGRAMS)


def _with_timer(timer: Callable[[], float]) -> tuple[object, ...]:
    stock = timeit.Timer.__init__.__defaults__ or ()
    return tuple(timer if value is timeit.default_timer else value for value in stock)


def _sleep(machine: Machine, host: Callable[[], HostThread], sites: Sites) -> Callable[[float], None]:
    stock = time.sleep
    polls: dict[int, Polls] = {}

    def sleep(seconds: float) -> None:
        frame = sys._getframe(1)
        if not _is_modelled(frame):
            stock(seconds)
            return
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        thread, site = host(), sites.number(2)
        before = polls.get(thread.index, Polls(0, 0, 0))
        again = site == before.site and thread.now_ns - before.end_ns <= POLL_NS
        by = "time.sleep" if sites.is_program(frame) else LIBRARYS_SLEEP
        machine.sleep(thread, round(seconds * SECOND_NS), site, by)
        number = before.number + 1 if again else 0
        polls[thread.index] = Polls(site, thread.now_ns, number)
        if number >= MOST_POLLS:
            stock(min(seconds, LONGEST_POLL_S))

    return sleep


class Polls(NamedTuple):
    """A thread's sleeps in one place, one after another with nothing between: where, when the last ended, how many."""

    site: int
    end_ns: int
    number: int
