"""The host's own work, measured on this machine: what the program does between operators that the modelled clock omits.

A gap between two operators of the main thread counts from `LEAST_NS` on: its processor time (Python, NumPy, an image
decoder, a tokenizer) and the time that it was blocked (a disk, a server, a lock). What the emulation itself does there
is left out, and so are optimizers' steps and backward passes, which are PyTorch's. The totals are facts of this
machine, which a report says and a saved trace does not hold.

No operator tells which line works: `looks` do, and what they saw in a gap is kept until its end, which says what the
work was for. It made data where a loader ran, or where the next operator took a tensor of the host's and the line that
worked comes before that operator's: what comes behind it in the loop belongs to the step before.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter_ns as clock_ns
from time import thread_time_ns
from types import FrameType
from typing import NamedTuple

import torch

from windtunnel.machine.machine import Machine
from windtunnel.operators.card import card
from windtunnel.seam.sites import LIBRARY, OURS, PROGRAM, Sites, kind_of, shown
from windtunnel.seam.torch.state.looks import Frame, Sampler, can_look
from windtunnel.seam.torch.state.sources import is_generator
from windtunnel.seam.torch.state.thread_costs import BatchCost, Reading, delay_ns, files_read, freeing_ns_per_byte
from windtunnel.seam.torch.tags import device_of
from windtunnel.trace.operation import UNKNOWN_SITE, Kind, Site
from windtunnel.trace.plain import Json
from windtunnel.trace.trace import KIND, SITE, Table

LEAST_NS, LEAST_FEEDING_NS = 100_000, 20_000
"""So much of a gap is the Python of an operator's call, which its modelled dispatch covers; in a loader it is less."""
LONG_NS = 1_000_000
SAMPLED_NS = 300_000
"""How old the processor time at a gap's beginning may be: reading it costs more than an operator should."""
SURFACE = os.path.join(OURS, "seam", "torch", "tensor") + os.sep
EMULATION = tuple(os.path.join(OURS, name) for name in ("seam", "machine", "trace", "cost", "departure.py"))
"""Our files, without those of `SURFACE`: they stand for methods that PyTorch has too."""
COMPILING = tuple(f"{os.sep}torch{os.sep}{name}{os.sep}" for name in ("_dynamo", "_inductor", "_functorch", "fx"))
CALLING = tuple(
    f"{os.sep}torch{os.sep}{name}"
    for name in (f"nn{os.sep}", f"autograd{os.sep}", f"optim{os.sep}", f"amp{os.sep}", "_tensor.py", "functional.py")
)
"""PyTorch's own Python on the way to an operator, which its modelled dispatch covers."""
MAPPED = tuple(f"{os.sep}numpy{os.sep}{name}{os.sep}memmap.py" for name in ("_core", "core"))
"""Where files are read without a call that the system counts."""
_graph_task = torch._C._current_graph_task_id
FEEDING = ("aten::lift_fresh", "aten::lift_fresh_copy", "aten::stack", "aten::cat")
"""What takes data from the host's own memory on, besides what transfers."""
MOST_STEPS, MOST_LINES, MOST_FRAMES = 100_000, 64, 12
FREED_LEAST = 1 << 20
ROUNDS = 5
"""So many long gaps that one line ended are a loop; fewer are what a program does once."""

SYNCING = re.compile(r"\b(?:fsync|fdatasync|sync)\(")
WITHIN = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
"""Functions of Python's that a person sees as a part of the one around them."""
LOADER, MADE, OTHER = "loader", "made", "other"
Chain = tuple[Frame, ...]
Looks = list[tuple[Chain | None, int]]
"""The program's frames, innermost first, or None for what is not its own; and how long they stand for, in ns."""


class Gaps(NamedTuple):
    """What the gaps of a part of the run come to: nanoseconds of the processor, and of waiting for anything else."""

    cpu_ns: int = 0
    blocked_ns: int = 0
    number: int = 0

    def and_more(self, cpu_ns: int, blocked_ns: int) -> Gaps:
        """These and another one."""
        return Gaps(self.cpu_ns + cpu_ns, self.blocked_ns + blocked_ns, self.number + 1)

    @property
    def work_ns(self) -> int:
        """What they are counted for: neither waiting for a processor nor for the sampler."""
        return self.cpu_ns + self.blocked_ns


class HostWork:
    """The gaps of one thread: the one that began the emulation."""

    def __init__(self, machine: Machine) -> None:
        self.trace = machine.trace
        self.devices = machine.devices
        self.freeing_ns_per_byte: float | None = None
        self.sites = Sites(Table([UNKNOWN_SITE]))  # not the trace's, which does not depend on this machine
        self.thread = threading.get_ident()
        self.inside = False
        self.in_worker = False  # of a loader: it works for nothing else
        self.feeding = 0  # loaders' `next` that are running, one in another
        self.least_ns = LEAST_NS
        self.left_ns = clock_ns()
        self.cpu_ns = thread_time_ns()
        self.stepping = False  # inside an optimizer's step, whose Python is PyTorch's
        self.due_ns = 0  # when the processor's time is to be read again
        self.looking_ns = 0  # what the sampler's looks have taken in the gap that lasts, while this thread waited
        self.delayed = 0.0  # the share of the time without a processor in which the thread waited for one
        self._delay = self.left_ns, self.cpu_ns, delay_ns()
        self.all = self.step = Gaps()
        self.steps: list[Gaps] = []
        self.long: dict[int, Gaps] = {}  # by the line whose operator ended the gap
        self.batches: list[tuple[int, int]] = []  # what each of a loader took where it was made, and waiting of it
        self.workers = 0
        self.read_before = files_read()
        self.read_by_workers = Reading()
        self.pending: Looks = []  # of the gap that lasts
        self.looked_at = 0, 0  # when was last looked, and the thread's processor time then
        self.seen: Counter[tuple[Chain, str]] = Counter()  # ns by what ran there and what it was for
        self.worker_lines: Counter[Site] = Counter()
        # Of what was looked at, the program's and the rest: by whether it was in a loader, and in a long gap.
        self.looked = {(loader, long): [0, 0] for loader in (False, True) for long in (False, True)}
        self.mapped_ns = 0
        self._sampler: Sampler | None = None

    # ------------------------------------------------------------------ gaps

    def gap(self, now_ns: int, name: str = "", args: Sequence[object] = ()) -> None:
        """Count the time since the last operator, which this thread spent outside of any; the next one is `name`."""
        wall = max(0, now_ns - self.left_ns - self.looking_ns)
        cpu_ns = thread_time_ns()
        spent = min(wall, max(0, cpu_ns - self.cpu_ns))
        self.cpu_ns, self.due_ns, self.left_ns, self.looking_ns = cpu_ns, now_ns + SAMPLED_NS, now_ns, 0
        seen, self.pending = self.pending, []
        if self.stepping or _graph_task() >= 0:  # PyTorch's own, and what freeing emulated memory takes
            return
        if wall - spent > LONG_NS:
            self._see_delay(now_ns, cpu_ns)
        spent, waited = max(0, spent - self.least_ns - self._freeing_ns()), round((wall - spent) * (1 - self.delayed))
        own = self._own_share(seen, spent + waited)
        spent, waited = round(spent * own), round(waited * own)
        self.all = self.all.and_more(spent, waited)
        self.step = self.step.and_more(spent, waited)
        if spent + waited > LONG_NS:
            site = self.sites.number()
            self.long[site] = self.long.get(site, Gaps()).and_more(spent, waited)
        if seen:
            self._settle(seen, name, args)
        if self._sampler is None and self.all.work_ns > LONG_NS and can_look():
            self._sampler = Sampler(self)

    def _freeing_ns(self) -> int:
        """What giving back the host memory of the emulated tensors that died in the gap took; a GPU's cost nothing."""
        freed = 0
        for device in self.devices:
            for block in [*device.frees]:
                freed += block.size
        if freed < FREED_LEAST:
            return 0
        if self.freeing_ns_per_byte is None:
            self.freeing_ns_per_byte = freeing_ns_per_byte()
            self.leave()
        return round(freed * self.freeing_ns_per_byte)

    def _own_share(self, seen: Looks, spent_ns: int) -> float:
        """The program's share of a gap: that of what was seen of it, else what was seen of others like it."""
        looked = self.looked[self.feeding > 0, spent_ns > LONG_NS]
        for chain, elapsed in seen:
            looked[chain is None] += elapsed
        own = sum(elapsed for chain, elapsed in seen if chain is not None)
        whole = sum(elapsed for _, elapsed in seen)
        return own / whole if whole else (looked[0] + 1) / (sum(looked) + 1)

    def _settle(self, seen: Looks, name: str, args: Sequence[object]) -> None:
        """Say what the work of a gap was for, now that it has ended."""
        if self.feeding:
            for chain, elapsed in seen:
                if chain is not None:
                    self.seen[chain, LOADER] += elapsed
            return
        feeds = (
            name in FEEDING
            or card(name).transfers
            or any(isinstance(one, torch.Tensor) and device_of(one) < 0 for one in args)
        )
        end = _program_frames(sys._getframe(2)) if feeds else ()
        read = self._read_site() if feeds else UNKNOWN_SITE
        for chain, elapsed in seen:
            if chain is not None:
                self.seen[chain, MADE if feeds and _came_before(chain, end, read) else OTHER] += elapsed

    def _read_site(self) -> Site:
        """The line at which the host waited for a device just before, and so may have got what it worked on."""
        rows = self.trace.rows
        last = rows[len(rows) - 1] if len(rows) else None
        if last is None or last[KIND] not in (Kind.SYNCHRONIZE, Kind.COPY):
            return UNKNOWN_SITE
        return self.trace.sites[last[SITE]]

    def _see_delay(self, now_ns: int, cpu_ns: int) -> None:
        """How much of the time without a processor, since this was last asked, the thread waited for one."""
        before, self._delay = self._delay, (now_ns, cpu_ns, delay_ns())
        wall, cpu, delay = (now - then for now, then in zip(self._delay, before, strict=True))
        self.delayed = min(1.0, delay / (wall - cpu)) if wall > cpu else 0.0

    def leave(self) -> None:
        """An operator has ended, or what is counted as little."""
        self.left_ns = now_ns = clock_ns()
        if now_ns > self.due_ns:
            self.sample(now_ns)

    def sample(self, now_ns: int) -> None:
        """Read the processor's time, which a gap from here on begins at."""
        self.cpu_ns, self.due_ns = thread_time_ns(), now_ns + SAMPLED_NS

    def close(self) -> int:
        """Count the gap up to here; all that was counted so far, in nanoseconds."""
        now_ns = clock_ns()
        if not self.inside and now_ns - self.left_ns > self.least_ns:
            self.gap(now_ns)
        return self.all.work_ns

    def is_here(self) -> bool:
        """Whether this is the thread."""
        return threading.get_ident() == self.thread

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What runs here is the emulation's, or is counted elsewhere."""
        if self.inside or not self.is_here():
            yield
            return
        self.close()
        self.inside = True
        try:
            yield
        finally:
            self.inside = False
            self.leave()

    def feed(self, more: int) -> int:
        """A loader's `next` begins (1) or has ended (-1); all that was counted so far."""
        counted = self.close()
        self.feeding += more
        self.least_ns = LEAST_FEEDING_NS if self.feeding else LEAST_NS
        return counted

    def steps_now(self, stepping: bool) -> None:
        """An optimizer's step begins, or has ended."""
        if not self.is_here():
            return
        self.close()
        self.leave()
        self.stepping = stepping

    def stepped(self) -> None:
        """A step of the program has ended."""
        if not self.is_here():
            return
        self.close()
        if len(self.steps) < MOST_STEPS:
            self.steps.append(self.step)
        self.step = Gaps()
        if len(self.steps) == 1:  # it holds what happens once
            self.long.clear()
            self.seen.clear()
            self.worker_lines.clear()
            self.batches.clear()
            self.looked = {key: [0, 0] for key in self.looked}
            self.mapped_ns = 0
            self.end()  # the looks begin anew
            self.read_before, self.read_by_workers = files_read(), Reading()

    def made_batch(self, made: BatchCost, workers: int = 0) -> None:
        """A loader has delivered a batch, made by one of so many workers or in this thread."""
        self.workers = workers
        self.read_by_workers = Reading(*map(sum, zip(self.read_by_workers, made.read, strict=True)))
        if len(self.batches) < MOST_STEPS:
            self.batches.append((made.work_ns, made.blocked_ns))
        self.worker_lines.update(made.lines or {})

    def made_here(self) -> Counter[Site]:
        """In a loader's worker: the lines that worked since this was last asked."""
        self.close()
        lines: Counter[Site] = Counter()
        for (chain, purpose), spent in self.seen.items():
            if purpose == LOADER and chain:
                lines[self._site(chain)] += spent
        self.seen.clear()
        return lines

    # ------------------------------------------------------------------ looks

    def works(self) -> bool:
        """Whether this thread works by itself at the moment, for longer than an operator's call explains."""
        if self.inside or self.stepping or (self.in_worker and not self.feeding):
            return False
        return clock_ns() - self.left_ns > self.least_ns

    def look(self, frames: list[Frame], now_ns: int, cpu_ns: int) -> None:
        """Keep what is running, until the gap ends: None for the emulation, a compiler or PyTorch's own Python.

        `frames` are the thread's, as (file, line, function), innermost first.
        """
        spent = max(0, cpu_ns - max(self.looked_at[1], self.cpu_ns))
        waited = max(0, now_ns - max(self.looked_at[0], self.left_ns) - spent)
        elapsed = spent + round(waited * (1 - self.delayed))
        self.looked_at = now_ns, cpu_ns
        mapped = False
        chain: Chain | None = ()
        # Of lists: a tuple that a generator fills fails when the program calls `gc.get_objects()` meanwhile.
        for place, (file, _, _) in enumerate(frames):
            if _is_ours(file) or (not self.feeding and any(part in file for part in CALLING)):
                chain = None
                break
            mapped = mapped or file.endswith(MAPPED)
            if kind_of(file) == PROGRAM:
                chain = tuple([frame for frame in frames[place:] if kind_of(frame[0]) == PROGRAM][:MOST_FRAMES])
                break
        else:
            chain = tuple([frame for frame in frames if kind_of(frame[0]) == LIBRARY][:1])
        self.mapped_ns += elapsed if mapped else 0
        self.pending.append((chain, elapsed))

    def end(self) -> None:
        """Stop looking."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None

    def _site(self, chain: Chain) -> Site:
        if not chain:
            return UNKNOWN_SITE
        file, line, _ = chain[0]
        function = next((name for _, _, name in chain if name not in WITHIN), chain[0][2])
        return Site(shown(file, self.sites.here), line, function)

    # ------------------------------------------------------------------ in the end

    def facts(self, pace: float = 1.0) -> Json:
        """What it comes to, as plain JSON for `Trace.facts`: see `reports/parts/host.py`.

        `pace` is by what the host that is emulated is slower than this machine: a disk is as fast there as here.
        """
        parts = self.steps[1:] or [gaps for gaps in self.long.values() if gaps.number >= ROUNDS]
        whole = Gaps(*map(sum, zip(*parts, strict=True))) if parts else Gaps()
        rounds = len(parts) if self.steps else max((gaps.number for gaps in parts), default=0)
        blocked = whole.blocked_ns / (whole.work_ns or 1)
        each = median(part.work_ns for part in parts) if self.steps[1:] else whole.work_ns / max(1, rounds)
        batch_ns, batch_blocked = 0.0, 0.0
        if self.batches:
            batch_ns = median(work_ns for work_ns, _ in self.batches)
            batch_blocked = sum(waited for _, waited in self.batches) / (sum(work for work, _ in self.batches) or 1)
        read = self.read_by_workers if self.workers else files_read().since(self.read_before)
        data, other = self._lines()
        return {
            "steps": len(self.steps),
            "rounds": rounds,
            "round_ns": round(each * (blocked + (1 - blocked) * pace)),
            "pace": round(pace, 3),
            "blocked_share": blocked,
            "files_share": min(1.0, (self.mapped_ns + self._waiting_for_disks()) / (sum(self.seen.values()) or 1)),
            "data_lines": _plain_lines(data),
            "lines": _plain_lines(other),
            "worker_lines": _plain_lines(self.worker_lines),
            "ended_by": [[*self.sites.table[site][:3], gaps.work_ns] for site, gaps in self.long.items()][:MOST_LINES],
            "batch_ns": round(batch_ns * (batch_blocked + (1 - batch_blocked) * pace)),
            "batch_blocked_share": batch_blocked,
            "workers": self.workers,
            "io_bytes": max(read.size_bytes, read.disk_bytes) // max(1, rounds),
            "io_calls": read.calls // max(1, rounds),
        }

    def _waiting_for_disks(self) -> int:
        """How long the lines were seen at work that ask for what they wrote to be on a disk."""
        return sum(
            spent
            for (chain, _), spent in self.seen.items()
            if chain and SYNCING.search(linecache.getline(*chain[0][:2]))
        )

    def _lines(self) -> tuple[Counter[Site], Counter[Site]]:
        """The lines that made data, and those that did something else."""
        data: Counter[Site] = Counter()
        other: Counter[Site] = Counter()
        for (chain, purpose), spent in self.seen.items():
            (other if purpose == OTHER else data)[self._site(chain)] += spent
        return data, other


def _plain_lines(lines: Counter[Site]) -> list[list[object]]:
    return [[*site[:3], spent] for site, spent in lines.most_common(MOST_LINES)]


def _is_ours(file: str) -> bool:
    if file.startswith(EMULATION):
        return not file.startswith(SURFACE)
    return any(part in file for part in COMPILING)


def _program_frames(frame: FrameType | None) -> Chain:
    """The program's frames on this thread's stack, innermost first."""
    found: list[Frame] = []
    while frame is not None and len(found) < MOST_FRAMES:
        code = frame.f_code
        if kind_of(code.co_filename) == PROGRAM:
            found.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(found)


def _came_before(chain: Chain, end: Chain, read: Site) -> bool:
    """Whether work was done for the operator at `end`: in a generator, or on the way there in the function of both.

    Not if it comes behind a line that had `read` something from a device, and so answers that.
    """
    if any(is_generator(*frame) for frame in chain[:-1]):
        return True
    for (file, line, function), (its_file, its_line, its_function) in zip(reversed(chain), reversed(end), strict=False):
        if (file, function) != (its_file, its_function):
            return False
        if line != its_line:
            answers = read.file and file.endswith(read.file) and read.function.endswith(function) and read.line <= line
            return line < its_line and not answers
        if read.file and file.endswith(read.file) and read.function.endswith(function) and read.line < line:
            return False
    return True
