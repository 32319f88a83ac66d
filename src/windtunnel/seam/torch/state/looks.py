"""Looks at the stack of a thread that works by itself, every few milliseconds, by a thread of ours.

Frames that this thread held while their functions return would keep those functions' tensors alive, and so change the
order of allocations: they are read in one call into C, inside which no other thread runs. Nor is garbage collected
meanwhile, since a finalizer may let go of Python's lock: the thread would return from frames that are being read, or
start another one, for which it would wait without end while Python's list of threads is locked.
(`faulthandler` needs no objects, but walks Python's threads without their lock: one that C++ is adding at the moment
ends the process.)
"""

from __future__ import annotations

import _thread
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, chain, islice, repeat, takewhile
from operator import attrgetter, is_not, methodcaller
from time import perf_counter_ns as clock_ns
from typing import Protocol, cast

from windtunnel.seam.living import at_once

OFTEN_S, SELDOM_S, OFTEN, MOST_LOOKS = 0.001, 0.02, 300, 1500
"""How often is looked, and how many looks are enough: the first ones tell most."""
TURN_S = 0.00025
"""How long the sampler waits for Python's lock: what it looks for may be shorter than Python's 5 ms."""
PARTS = attrgetter("f_code.co_filename", "f_lineno", "f_code.co_name")
PRESENT = partial(is_not, None)

Frame = tuple[str, int, str]
"""A file, a line and the name of a function."""


class Watched(Protocol):
    """What is looked at."""

    thread: int
    looking_ns: int

    def works(self) -> bool:
        """Whether it works by itself at the moment, and has done so for long enough."""

    def look(self, frames: list[Frame], now_ns: int, cpu_ns: int) -> None:
        """The thread's frames, innermost first, the time and the thread's processor time."""


class Sampler:
    """A thread that looks at another one's stack while that one works by itself."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self._stopping = _thread.allocate_lock()
        self._stopping.acquire()
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        SAMPLERS.add(self)
        self._interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(TURN_S, self._interval_s))
        _thread.start_new_thread(self._run, (watched,))  # no `threading.Thread`, which the program would see

    def _run(self, watched: Watched) -> None:
        looks = 0
        processor = time.pthread_getcpuclockid(watched.thread)
        while looks < MOST_LOOKS and not self._stopping.acquire(timeout=OFTEN_S if looks < OFTEN else SELDOM_S):
            # From here to the end nothing lets another thread run.
            if not watched.works():
                continue
            begin_ns, cpu_ns = clock_ns(), time.clock_gettime_ns(processor)
            watched.look(stack_of(watched.thread), begin_ns, cpu_ns)
            watched.looking_ns += clock_ns() - begin_ns
            looks += 1
        self._give_back()
        del watched  # this thread's frame may outlive the emulation by a moment
        self._ended.release()

    def _give_back(self) -> None:
        """Let Python's threads take turns as they did, unless the program has had a say meanwhile."""
        if sys.getswitchinterval() == TURN_S:
            sys.setswitchinterval(self._interval_s)

    def stop(self) -> None:
        """End the thread, and wait until it has ended."""
        SAMPLERS.discard(self)
        self._stopping.release()
        self._ended.acquire(timeout=1)
        self._give_back()  # should the thread not have had a turn in all that time
        del self.watched


SAMPLERS: weakref.WeakSet[Sampler] = weakref.WeakSet()


def stack_of(thread: int) -> list[Frame]:
    """A thread's frames of this moment, as (file, line, function), innermost first; none of one that has ended."""
    here = chain(islice(map(methodcaller("get", thread), iter(sys._current_frames, None)), 1), repeat("f_back"))
    frames: Iterator[Frame] = map(PARTS, takewhile(PRESENT, accumulate(here, getattr)))
    walk = partial[list[Frame]](list, frames)
    found = cast(list[Frame], at_once(walk)[0])
    return [frame for frame in found if frame[1]]  # see the docstring of the module


def can_look() -> bool:
    """Whether this system has what looks need."""
    return hasattr(time, "pthread_getcpuclockid")


def _stop_all() -> None:
    """Before a fork: the child has none of these threads, and Python warns of a fork that leaves some behind."""
    for sampler in [*SAMPLERS]:
        stopping: Callable[[], None] = getattr(sampler.watched, "end", sampler.stop)
        stopping()


os.register_at_fork(before=_stop_all)
