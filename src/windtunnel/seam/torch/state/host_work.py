"""The host's own work, measured on this machine: what the program does between operators that the modelled clock omits.

A gap between two operators of the main thread counts from `LEAST_NS` on: its processor time (Python, NumPy, an image
decoder, a tokenizer) and the time that it was blocked (a disk, a server, a lock). What the emulation itself does there
is left out (`apart`). The totals are facts of this machine, which a report says and a saved trace does not hold.

Which line works is sampled, since no operator tells: while a gap lasts, a thread of ours looks every few milliseconds.
It does so by `faulthandler`, whose C reads the stack without making objects of its frames: such an object, held while
its function returns, would keep the function's tensors alive and so change the order of allocations.
"""

from __future__ import annotations

import _thread
import faulthandler
import fcntl
import os
import re
import resource
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from statistics import median
from time import perf_counter_ns as clock_ns
from time import thread_time_ns
from typing import NamedTuple

import torch

from windtunnel.seam.sites import OURS, PROGRAM, Sites, kind_of, shown
from windtunnel.trace.operation import UNKNOWN_SITE, Site
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import Table

LEAST_NS = 100_000
"""So much of a gap is the Python of an operator's call, which its modelled dispatch covers."""
LONG_NS = 1_000_000
OFTEN_S, SELDOM_S, OFTEN, MOST_LOOKS = 0.001, 0.02, 200, 1000
"""How often long gaps are looked at, and how many looks are enough: the first ones tell most."""
TURN_S = 0.00025
"""How long the sampler waits for Python's lock: gaps may be shorter than Python's 5 ms."""
UNSURE_NS = 50_000_000
"""So little was looked at that the emulation's share of it says nothing."""
SAMPLED_NS = 300_000
"""How old the processor time at a gap's beginning may be: reading it costs more than an operator should."""
EMULATION = tuple(os.path.join(OURS, name) for name in ("seam", "machine", "trace", "cost", "departure.py"))
THROUGH = tuple(os.path.join(OURS, *name) for name in (("seam", "torch", "tensor", "data.py"),))
"""Our files whose functions call the program's, so that what they wait for is its own work."""
COMPILING = tuple(f"{os.sep}torch{os.sep}{name}{os.sep}" for name in ("_dynamo", "_inductor", "_functorch", "fx"))
_current_node = torch._C._current_autograd_node
MOST_STEPS, MOST_LINES = 100_000, 64
ROUNDS = 5
"""So many long gaps that one line ended are a loop; fewer are what a program does once."""
FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


class Gaps(NamedTuple):
    """What the gaps of a part of the run come to, in nanoseconds.

    `blocked_ns` is what the thread waited for anything but a processor. `data_ns` is the part that made data: in a
    loader, or until an operator took data from the host's memory.
    """

    cpu_ns: int = 0
    blocked_ns: int = 0
    data_ns: int = 0
    number: int = 0

    def and_more(self, cpu_ns: int, blocked_ns: int, data: bool) -> Gaps:
        """These and another one."""
        data_ns = cpu_ns + blocked_ns if data else 0
        return Gaps(self.cpu_ns + cpu_ns, self.blocked_ns + blocked_ns, self.data_ns + data_ns, self.number + 1)

    @property
    def work_ns(self) -> int:
        """What they are counted for: neither waiting for a processor nor for the sampler."""
        return self.cpu_ns + self.blocked_ns


class HostWork:
    """The gaps of one thread: the one that began the emulation."""

    def __init__(self) -> None:
        self.sites = Sites(Table([UNKNOWN_SITE]))  # not the trace's, which does not depend on this machine
        self.thread = threading.get_ident()
        self.inside = False
        self.feeding = 0  # loaders' `next` that are running, one in another
        self.left_ns = clock_ns()
        self.cpu_ns = thread_time_ns()
        self.stepping = False  # inside an optimizer's step, whose Python is PyTorch's
        self.due_ns = 0  # when the processor's time is to be read again
        self.looking_ns = 0  # what the sampler's looks have taken in the gap that lasts, while this thread waited
        self.delayed = 0.0  # the share of the time without a processor in which the thread waited for one
        self._delay = self.left_ns, self.cpu_ns, _delay_ns()
        self.all = self.step = Gaps()
        self.steps: list[Gaps] = []
        self.long: dict[int, Gaps] = {}  # by the line whose operator ended the gap
        self.batch_ns: list[int] = []  # what each batch of a loader took where it was made
        self.workers = 0
        self.read_before = read_bytes()
        self.read_by_workers = 0
        self.lines: Counter[Site] = Counter()  # ns of gaps, by the line that was found at work
        self.worker_lines: Counter[Site] = Counter()
        self.excluded_ns = 0  # of them, the emulation's and the compiler's
        self._sampler: Sampler | None = None

    # ------------------------------------------------------------------ gaps

    def gap(self, now_ns: int, data: bool) -> None:
        """Count the time since the last operator, which this thread spent outside of any."""
        wall = max(0, now_ns - self.left_ns - self.looking_ns)
        cpu_ns = thread_time_ns()
        spent = min(wall, max(0, cpu_ns - self.cpu_ns))
        self.cpu_ns, self.due_ns, self.left_ns, self.looking_ns = cpu_ns, now_ns + SAMPLED_NS, now_ns, 0
        if self.stepping or _current_node() is not None:  # PyTorch's own, and what freeing emulated memory takes
            return
        if wall - spent > LONG_NS:
            self._see_delay(now_ns, cpu_ns)
        cpu, blocked = max(0, spent - LEAST_NS), round((wall - spent) * (1 - self.delayed))
        made = data or self.feeding > 0
        self.all = self.all.and_more(cpu, blocked, made)
        self.step = self.step.and_more(cpu, blocked, made)
        if cpu + blocked > LONG_NS:
            site = self.sites.number()
            self.long[site] = self.long.get(site, Gaps()).and_more(cpu, blocked, made)
        if self._sampler is None and self.all.work_ns > LONG_NS and hasattr(os, "memfd_create"):
            self._sampler = Sampler(self)

    def _see_delay(self, now_ns: int, cpu_ns: int) -> None:
        """How much of the time without a processor, since this was last asked, the thread waited for one."""
        before, self._delay = self._delay, (now_ns, cpu_ns, _delay_ns())
        wall, cpu, delay = (now - then for now, then in zip(self._delay, before, strict=True))
        self.delayed = min(1.0, delay / (wall - cpu)) if wall > cpu else 0.0

    def leave(self) -> None:
        """An operator has ended, or what is counted as little."""
        self.left_ns = now_ns = clock_ns()
        if now_ns > self.due_ns:
            self.read_processor(now_ns)

    def read_processor(self, now_ns: int) -> None:
        """Read the processor's time of this thread."""
        self.cpu_ns, self.due_ns = thread_time_ns(), now_ns + SAMPLED_NS

    def close(self) -> int:
        """Count the gap up to here; all that was counted so far, in nanoseconds."""
        now_ns = clock_ns()
        if not self.inside and now_ns - self.left_ns > LEAST_NS:
            self.gap(now_ns, False)
        return self.all.work_ns

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What runs here is the emulation's, or is counted elsewhere."""
        if self.inside or threading.get_ident() != self.thread:
            yield
            return
        self.close()
        self.inside = True
        try:
            yield
        finally:
            self.inside = False
            self.leave()

    def steps_now(self, stepping: bool) -> None:
        """An optimizer's step begins, or has ended."""
        self.close()
        self.leave()
        self.stepping = stepping

    def stepped(self) -> None:
        """A step of the program has ended."""
        self.close()
        if len(self.steps) < MOST_STEPS:
            self.steps.append(self.step)
        self.step = Gaps()
        if len(self.steps) == 1:  # it holds what happens once
            self.long.clear()
            self.lines.clear()
            self.worker_lines.clear()
            self.batch_ns.clear()
            self.excluded_ns = 0
            self.end()  # the looks begin anew
            self.read_before, self.read_by_workers = read_bytes(), 0

    def made_batch(self, work_ns: int, workers: int = 0, lines: dict[Site, int] | None = None, read: int = 0) -> None:
        """A loader has delivered a batch, whose making took so long, in one of so many workers or in this thread."""
        self.workers = workers
        self.read_by_workers += read
        if len(self.batch_ns) < MOST_STEPS:
            self.batch_ns.append(work_ns)
        self.worker_lines.update(lines or {})

    # ------------------------------------------------------------------ lines

    def look(self, frames: list[tuple[str, int, str]], elapsed_ns: int) -> None:
        """Count some time for the line that is running, or for the emulation or a compiler if they are.

        `frames` are the thread's, as (file, line, function), innermost first.
        """
        for place, (file, _, _) in enumerate(frames):
            if (file.startswith(EMULATION) and not file.startswith(THROUGH)) or any(part in file for part in COMPILING):
                self.excluded_ns += elapsed_ns
                return
            if kind_of(file) == PROGRAM:
                _, line, function = frames[place]
                self.lines[Site(shown(file, self.sites.here), line, function)] += elapsed_ns
                return

    def end(self) -> None:
        """Stop looking."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None

    # ------------------------------------------------------------------ in the end

    def facts(self) -> Json:
        """What it comes to, as plain JSON for `Trace.facts`: see `reports/parts/host.py`."""
        looked = self.excluded_ns + sum(self.lines.values())
        own = 1 - self.excluded_ns / (looked + UNSURE_NS)
        parts = self.steps[1:] or [gaps for gaps in self.long.values() if gaps.number >= ROUNDS]
        whole = Gaps(*map(sum, zip(*parts, strict=True))) if parts else Gaps()
        rounds = len(parts) if self.steps else max((gaps.number for gaps in parts), default=0)
        each_ns = median(part.work_ns for part in parts) if self.steps[1:] else whole.work_ns / max(1, rounds)
        read = self.read_by_workers if self.workers else max(0, read_bytes() - self.read_before)
        return {
            "steps": len(self.steps),
            "rounds": rounds,
            "round_ns": round(each_ns * own),
            "blocked_share": whole.blocked_ns / (whole.work_ns or 1),
            "data_share": whole.data_ns / (whole.work_ns or 1),
            "lines": _plain_lines(self.lines),
            "worker_lines": _plain_lines(self.worker_lines),
            "ended_by": [[*self.sites.table[site][:3], gaps.work_ns] for site, gaps in self.long.items()][:MOST_LINES],
            "batch_ns": round(median(self.batch_ns)) if self.batch_ns else 0,
            "workers": self.workers,
            "read_bytes": read // max(1, rounds),
        }


def _plain_lines(lines: Counter[Site]) -> list[list[object]]:
    return [[*site[:3], spent] for site, spent in lines.most_common(MOST_LINES)]


def _delay_ns() -> int:
    """How long this thread has been ready to run without a processor; 0 where the system does not say."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def read_bytes() -> int:
    """The bytes that this thread has read from files or pipes; 0 where the system does not say."""
    try:
        with open("/proc/thread-self/io") as file:
            return int(file.readline().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


class Sampler:
    """A thread that looks at another one's stack while a gap of that one lasts."""

    def __init__(self, work: HostWork) -> None:
        self.work = work
        self._stopping = _thread.allocate_lock()
        self._stopping.acquire()
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        SAMPLERS.add(self)
        self._interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(TURN_S, self._interval_s))
        _thread.start_new_thread(self._run, ())  # no `threading.Thread`, which the program would see

    def _run(self) -> None:
        work, looks, seen_ns = self.work, 0, 0
        stacks = Stacks(work.thread)
        while not self._stopping.acquire(timeout=OFTEN_S if looks < OFTEN else SELDOM_S):
            if work.inside or clock_ns() - work.left_ns < LEAST_NS:
                continue
            # Nothing up to the next comment lets another thread run.
            begin_ns = clock_ns()
            faulthandler.dump_traceback(stacks.file, all_threads=True)
            now_ns, left_ns = clock_ns(), work.left_ns
            if not work.inside:
                work.looking_ns += min(now_ns - left_ns, now_ns - begin_ns)
            inside = work.inside
            # From here on the thread may go on.
            try:
                frames = stacks.frames()
            except OSError:  # the program has closed the file
                break
            if not inside:
                work.look(frames, now_ns - max(seen_ns, left_ns))
            seen_ns = now_ns
            looks += 1
            if looks == MOST_LOOKS:
                break
        with suppress(OSError):
            os.close(stacks.file)
        self._give_back()
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

    def frames(self) -> list[tuple[str, int, str]]:
        """The thread's frames that were written, as (file, line, function), innermost first; the file is empty then."""
        size = os.lseek(self.file, 0, os.SEEK_END)
        text = os.pread(self.file, size, 0).decode("ascii", "replace")
        os.ftruncate(self.file, 0)
        os.lseek(self.file, 0, os.SEEK_SET)
        own = text.partition(self._head)[2].partition("\n\n")[0]
        found = [(_plain(file), int(line), _plain(name)) for file, line, name in FRAME.findall(own)]
        return [frame for frame in found if frame[1]]


def _plain(text: str) -> str:
    """A name as it is, which `faulthandler` escapes."""
    return text.encode().decode("unicode_escape") if "\\" in text else text


def _stop_all() -> None:
    """Before a fork: the child has none of these threads, and Python warns of a fork that leaves some behind."""
    for sampler in [*SAMPLERS]:
        sampler.work.end()


os.register_at_fork(before=_stop_all)
