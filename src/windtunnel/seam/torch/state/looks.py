"""Looks at the stack of a thread that works by itself, every few milliseconds, by a thread of ours.

They are taken by `faulthandler`, whose C reads the stack without making objects of its frames: such an object, held
while its function returns, would keep the function's tensors alive and so change the order of allocations.
"""

from __future__ import annotations

import _thread
import faulthandler
import fcntl
import mmap
import os
import re
import resource
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns as clock_ns
from typing import Protocol

OFTEN_S, SELDOM_S, OFTEN, MOST_LOOKS = 0.001, 0.02, 300, 1500
"""How often is looked, and how many looks are enough: the first ones tell most."""
TURN_S = 0.00025
"""How long the sampler waits for Python's lock: what it looks for may be shorter than Python's 5 ms."""
SIZE = 1 << 20
"""More than a hundred threads' stacks take; what does not fit is lost."""
FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')

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
        _thread.start_new_thread(self._run, ())  # no `threading.Thread`, which the program would see

    def _run(self) -> None:
        watched, looks = self.watched, 0
        stacks = Stacks(watched.thread)
        processor = time.pthread_getcpuclockid(watched.thread)
        while looks < MOST_LOOKS and not self._stopping.acquire(timeout=OFTEN_S if looks < OFTEN else SELDOM_S):
            try:
                stacks.rewind()
            except OSError:  # the program has closed the file
                break
            # From here to the end nothing lets another thread run.
            if not watched.works():
                continue
            begin_ns, cpu_ns = clock_ns(), time.clock_gettime_ns(processor)
            watched.look(stacks.frames(), begin_ns, cpu_ns)
            watched.looking_ns += clock_ns() - begin_ns
            looks += 1
        stacks.close()
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
        del self.watched


SAMPLERS: weakref.WeakSet[Sampler] = weakref.WeakSet()


class Stacks:
    """A file in memory that `faulthandler` writes stacks into.

    Its number is a high one, since a program may close every file that it does not know: it gets a low one for the next
    file that it opens.
    """

    def __init__(self, thread: int) -> None:
        self._head = f"hread 0x{thread:016x}"
        low = os.memfd_create("stacks")
        try:
            self.file = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4)
        finally:
            os.close(low)
        os.ftruncate(self.file, SIZE)
        self._content = mmap.mmap(self.file, SIZE)

    def rewind(self) -> None:
        """Let the next look write to the beginning."""
        os.lseek(self.file, 0, os.SEEK_SET)

    def frames(self) -> list[Frame]:
        """The thread's frames of this moment, as (file, line, function), innermost first."""
        content = self._content
        faulthandler.dump_traceback(self.file, all_threads=True)
        size = content.find(b"\0")
        text = content[:size].decode("ascii", "replace")
        content[:size] = bytes(len(text))
        own = text.partition(self._head)[2].partition("\n\n")[0]
        found = [(_plain(file), int(line), _plain(name)) for file, line, name in FRAME.findall(own)]
        return [frame for frame in found if frame[1]]

    def close(self) -> None:
        """Give the file back."""
        self._content.close()
        with suppress(OSError):
            os.close(self.file)


def _plain(text: str) -> str:
    """A name as it is, which `faulthandler` escapes."""
    return text.encode().decode("unicode_escape") if "\\" in text else text


def can_look() -> bool:
    """Whether this system has what looks need."""
    return hasattr(os, "memfd_create")


def _stop_all() -> None:
    """Before a fork: the child has none of these threads, and Python warns of a fork that leaves some behind."""
    for sampler in [*SAMPLERS]:
        stopping: Callable[[], None] = getattr(sampler.watched, "end", sampler.stop)
        stopping()


os.register_at_fork(before=_stop_all)
