"""What this rank called and where it waits, for the other ranks to read; and the watcher that ends a run in which
nobody can go on.

Each rank keeps a ledger in a folder of the job (`windtunnel.ranks.ledger`). While a rank waits longer than usual, its
watcher reads the ledgers of all ranks. Where they show twice in a row, and unchanged, that none of those concerned can
go on, the rank writes down what is wrong and the process ends, as it does by NCCL's watchdog. Ranks whose calls differ
learn it from one another before anything is carried, and raise.
"""

from __future__ import annotations

import _thread
import concurrent.futures.thread
import json
import multiprocessing.util
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from time import monotonic_ns, sleep, time_ns
from types import FrameType
from typing import TYPE_CHECKING, Protocol

import torch.distributed as dist

from windtunnel import variables
from windtunnel.errors import FileFormatError
from windtunnel.ranks import flight_recorder, watchdog, words
from windtunnel.ranks.after import by_keyboard
from windtunnel.ranks.calls import Channel, Ending, Group, Operation, Rank, State
from windtunnel.ranks.judge import crosses_backends, judge, late, mismatches, unlike_messages
from windtunnel.ranks.ledger import (
    MOVED_AT,
    PROGRESS_AT,
    SEEN_AT,
    SUFFIX,
    THREADS_AT,
    Entry,
    Ledger,
    alive,
    read,
)
from windtunnel.seam.torch.distributed import nccl_settings
from windtunnel.trace.operation import UNKNOWN_SITE, Note, Site

if TYPE_CHECKING:
    from windtunnel.seam.torch.state.core import Core

TICK_S = 0.25
PATIENCE_NS = 1_000_000_000
"""How long a rank waits before it looks at the others."""
EXIT_CODE = 64
FRAMES = 12
KEY = "windtunnel/ledgers"
STALE = (
    "rank {rank} waited {timeout_s:g} s for rank 0 in a store that an earlier group of the same ranks has used; give "
    "each group that is made again a prefix of its own: dist.PrefixStore(name, store)"
)
VERDICT = ".verdict"
LOSSES = (RuntimeError, dist.DistNetworkError, dist.DistStoreError)
"""What gloo and the store raise if the other end of a connection is gone."""
DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Where Flight Recorder writes to, the rank added; the second is its name before PyTorch 2.9."""
GLOO = "gloo/transport"
REMOTE = (
    "NCCL error: remote process exited or there was a network error\nncclRemoteError: A call failed possibly due to a "
    "network error or a remote process exiting prematurely."
)
"""What NCCL says where gloo says that its peer is gone (`ncclGetErrorWithVersion` of NCCLUtils.cpp, NCCL's types)."""
OUTLAST_S = 0.02
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
LOST_S = 3.0
"""How long a rank that lost a connection looks for the rank that ended."""
DETECTED = "Detected mismatch between collectives on ranks."
"""How the error of TORCH_DISTRIBUTED_DEBUG=DETAIL begins (torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp)."""
CROSSED = (
    "windtunnel lets a rank go on past a collective of NCCL only until it uses its GPU again, so it cannot say whether "
    "this program ends, as it may on hardware: call NCCL and gloo in the same order on all ranks ({})"
)
OURS = str(Path(__file__).parents[3]) + os.sep


class Store(Protocol):
    """What is asked of the store by which ranks find one another."""

    def get(self, key: str, /) -> bytes: ...

    def set(self, key: str, value: str, /) -> None: ...

    @property
    def timeout(self) -> timedelta: ...


IDLE = (
    "windtunnel: no rank has given its GPU any work for {seconds} s, and none waits for another; "
    "rank {rank} is at {where}"
)
"""Said once on the terminal; the program goes on."""


class Watch:
    """This rank's ledger, and the thread that looks at everybody's; nothing of it before there is a second rank."""

    def __init__(self, core: Core, stuck_after_s: float) -> None:
        self.core = core
        self.stuck_after_ns = round(min(stuck_after_s, 1e9) * 1e9)
        self.ledger: Ledger | None = None
        self.lenient = False  # NCCL's watchdog is told to take no process down
        self.job = ""
        self._folder = ""
        self._own_folder = False
        self._process = 0
        self._serves = False
        self._waits: dict[int, int] = {}  # an entry of the ledger -> since when some thread waits in it
        self._threads: set[int] = set()  # threads that have called others
        self._lined_up: set[int] = set()  # those that wait until another thread's call has ended
        self._main = threading.main_thread().ident or 0
        self._stop = threading.Lock()  # let go of when the watcher is to end
        self._stop.acquire()
        self._stopped = threading.Lock()  # held by the watcher
        self._over = False
        self.failed = False  # a call of others failed: works that nobody waited for are its consequence
        self._differing = threading.Lock()
        self._told: dict[str, tuple[int, list[Note]]] = {}  # by a group, the thread that differed first, and how
        self._before: object = None
        self._progress = 0
        self._moved_ns = monotonic_ns()
        self._stuck_ns = 0
        self._idle_ns = 0
        self._verdict_ns = 0

    # ------------------------------------------------------------------ begin and end

    def begin(self, rank: int, store: Store) -> None:
        """The default group is about to be made: agree on a folder, open the ledger and start the watcher."""
        if self.ledger is not None:
            self.close()
        host = f"{socket.gethostname()} {_boot()}"
        if rank == 0:
            folder = os.environ.get(variables.FOLDER)
            self._own_folder = folder is None
            folder = folder or tempfile.mkdtemp(prefix="windtunnel-ranks-")
            job = f"{os.getpid()}-{monotonic_ns()}"
            store.set(KEY, json.dumps([folder, host, job]))
        else:
            folder, there, job = _said_by_first(rank, store)
            if there != host:  # on another machine: what it calls is compared, what it waits for is not seen
                self._own_folder = True
                folder = os.environ.get(variables.FOLDER) or tempfile.mkdtemp(prefix="windtunnel-ranks-")
        self.job, self._folder = job, folder
        path = os.path.join(folder, f"{job}-{rank}{SUFFIX}")
        self.ledger = Ledger(path, job, rank, host, monotonic_ns())
        self._process = os.getpid()
        self._serves = rank == 0 and os.environ.get(AGENT_STORE) != "True"
        self._over, self._before, self._verdict_ns = False, None, 0
        multiprocessing.util.Finalize(None, self._finished, exitpriority=0)
        _thread.start_new_thread(self._run, (self.ledger,))

    def left(self, code: int) -> None:
        """This process leaves past Python's end with an exit code; a child that was forked from it has no ledger."""
        if self.ledger is not None and os.getpid() == self._process and code and not self._over:
            self.ledger.ended(Ending("exit", f"exit code {code}"))

    def _finished(self) -> None:
        """Python ends: in order, or by an exception, which it keeps in `sys`."""
        if os.getpid() != self._process:
            return
        error = getattr(sys, "last_value", None)
        if self.ledger is None:
            pass
        elif error is None:
            self.ledger.ended(Ending("finished"))
        else:
            self.ledger.ended(Ending("exception", _first_line(error), self._raised(error)))
        if error is None and self._serves:
            self._over = True
            with suppress(KeyboardInterrupt):
                self._outlast()
        if self.ledger is None or not self._own_folder:
            return
        if all(entry.rank.ending is not None for entry in self._entries()):
            shutil.rmtree(self._folder, ignore_errors=True)

    def _outlast(self) -> None:
        """Stay until the other ranks have ended: torchrun's store, which is rank 0's here, outlives each of them."""
        own = {child.pid for child in multiprocessing.active_children()}  # whose end Python itself sees to
        while any(
            entry.rank.rank and entry.rank.ending is None and entry.process not in own for entry in self._entries()
        ):
            sleep(OUTLAST_S)

    def _raised(self, error: BaseException) -> Site:
        """The innermost line of the program in an error's traceback."""
        site, trace = UNKNOWN_SITE, error.__traceback__
        while trace is not None:
            if self._is_program(trace.tb_frame):
                site = Site(_short(trace.tb_frame.f_code.co_filename), trace.tb_lineno, trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        return site

    def close(self) -> None:
        """The groups are destroyed, or the emulation ends: this rank makes no more calls, and nobody watches."""
        if self.ledger is not None and os.getpid() == self._process:
            self.ledger.ended(Ending("finished"))
            self._stop.release()  # the watcher takes it again when it has ended
            with self._stopped:
                self.ledger = None

    # ------------------------------------------------------------------ what is called

    def joined(self, name: str, description: str, ranks: Sequence[int]) -> None:
        """A group of this rank is about to be made."""
        if self.ledger is not None:
            self.ledger.say("group", [name, Group(description, tuple(ranks))])

    def called(self, channel: Channel, operation: Operation, site: int, state: State = State.ISSUED) -> int:
        """Write down a call that was made; returns its entry, -1 where no ledger is kept."""
        if self.ledger is None:
            return -1
        self._threads.add(threading.get_ident())
        entry = self.ledger.add(channel, operation, self.core.machine.trace.sites[site], state, time_ns())
        if state is State.WAITING:
            self._waits[entry] = monotonic_ns()
        return entry

    def inside(self, channel: Channel, operation: Operation, site: int) -> AbstractContextManager[None]:
        """A call in which the rank waits for the others."""
        return self.waiting(self.called(channel, operation, site, State.WAITING))

    @contextmanager
    def turn(self, lock: threading.RLock) -> Iterator[None]:
        """Hold a lock; a thread that waits for it is at work on nothing else."""
        if not lock.acquire(blocking=False):
            self._lined_up.add(threading.get_ident())
            lock.acquire()
            self._lined_up.discard(threading.get_ident())
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def waiting(self, entry: int, posts: bool = False) -> Iterator[None]:
        """A call that was made, in which the rank now waits for the others; or `posts` what it will wait for later.

        Raises:
            DistBackendError: the connection was lost because another rank ended.
        """
        if self.ledger is None or entry < 0:
            yield
            return
        if not posts and entry not in self._waits:
            self._waits_in(entry)
        try:
            yield
        except RuntimeError as error:
            self._waits_in(entry)
            notes = self._lost() if type(error) in LOSSES else []
            if not notes:
                self.done(entry)
                if GLOO in str(error):
                    raise dist.DistBackendError(REMOTE) from None
                raise
            self._waits.pop(entry, None)
            raise self.failure(notes) from None  # gloo's words are not NCCL's
        except BaseException:
            self.done(entry)
            raise
        if not posts:
            self.done(entry)

    def _waits_in(self, entry: int) -> None:
        if entry not in self._waits and self.ledger is not None:
            self._waits[entry] = monotonic_ns()
            self.ledger.mark(entry, State.WAITING)

    def done(self, entry: int) -> None:
        """A call has ended."""
        self._waits.pop(entry, None)
        if self.ledger is not None:
            self.ledger.mark(entry, State.DONE, time_ns())

    def failure(self, notes: Sequence[Note]) -> dist.DistBackendError:
        """The error of a run in which something is wrong between ranks, which is written down."""
        self._over = self.failed = True
        self.core.machine.order_all(self.core.local.host)
        if self.ledger is not None:
            self.ledger.judged(notes)
            Path(self._verdict()).touch()
            self._dump()
        return dist.DistBackendError("\n".join(map(words.sentence, notes)))

    def agrees(self, channel: Channel, operation: Operation, store: Store) -> bool:
        """Whether the first rank that makes a group of this name gives it the same members."""
        if self.ledger is None:
            return True
        mine = str(operation)
        key = f"{KEY}/{self.job}/{channel.group}/{self.ledger.counts[channel]}"
        first: bytes = store.compare_set(key, "", mine)  # type: ignore[attr-defined]  # not in PyTorch's stubs
        return first.decode() == mine

    def differing(self, group: str, operation: Operation, site: int) -> dist.DistBackendError:
        """The error of a group whose ranks are about to make calls that differ; this rank's are given."""
        job = {entry.rank.rank: entry.rank for entry in self._entries()}
        notes = mismatches(job, only_open=True, group=group) or unlike_messages(job, group)
        with self._differing:
            me = threading.get_ident()
            thread, told = self._told.setdefault(group, (me, notes))
            notes = notes if thread == me else told
        if not notes:  # the others are on other machines
            place = self.core.machine.trace.sites[site]
            mine: tuple[tuple[str, str | int], ...] = (
                ("what", "operation or its tensors"), ("group", f"group {group}"), ("number", 0),
                (f"rank {os.environ.get('RANK', '?')}", f"{operation} at {place}"),
            )  # fmt: skip
            notes = [Note("collective-mismatch", place, mine)]
        error = self.failure(notes)
        if is_detailed():
            rank = os.environ.get("RANK", "?")
            return dist.DistBackendError(f"{DETECTED} Rank {rank} is running collective: {operation}.\n{error}")
        return error

    def late(
        self, channel: Channel, operation: Operation, waits_ms: Mapping[int, tuple[int, int]], tears_down: bool
    ) -> dist.DistBackendError:
        """The error of a call that took longer than its timeout, by each rank's wait and limit, 0 for none.

        Where NCCL's watchdog `tears_down`, a rank that waited too long ends here, as it does there.
        """
        entries = {entry.rank.rank: entry.rank for entry in self._entries()}
        me = -1 if self.ledger is None else self.ledger.rank
        number = 0 if self.ledger is None else self.ledger.counts.get(channel, 0)
        calls = {rank: call for rank in waits_ms if rank in entries and (call := entries[rank].call(channel, number))}
        if channel.peer in entries:  # whose part of a message has a channel of its own
            calls = {rank: call for rank, call in calls.items() if rank != channel.peer}
        notes = [late(entries, calls, waits_ms)] if calls else []
        error = self.failure(notes)
        waited_ms, limit_ms = waits_ms.get(me, (0, 0))
        if not 0 < limit_ms < waited_ms:
            return error
        group = entries[me].groups[channel.group]
        rank = group.ranks.index(me)
        said = watchdog.timeout(rank, number, operation, group, (limit_ms, waited_ms))
        if tears_down:
            lines = [said, f"[Rank {rank}] {watchdog.FAILED}", f"[Rank {rank}] {watchdog.TAKEN_DOWN}"]
            print("\n".join(f"[rank{me}]: {line}" for line in lines), file=sys.stderr)
            self._go(notes, lambda: os.kill(os.getpid(), signal.SIGABRT))
        return dist.DistBackendError(f"{said}\n{error}")

    def overdue(self, channel: Channel, operation: Operation, limit_ms: int) -> dist.DistBackendError:
        """The error of a `wait` that was given a time."""
        ledger = self.ledger
        if ledger is None:
            return dist.DistBackendError(f"{operation.name} took longer than {limit_ms} ms")
        group = read(ledger.path).rank.groups[channel.group]
        rank, number = group.ranks.index(ledger.rank), ledger.counts.get(channel, 0)
        return dist.DistBackendError(watchdog.timeout(rank, number, operation, group, (limit_ms, limit_ms)))

    # ------------------------------------------------------------------ the watcher

    def _run(self, ledger: Ledger) -> None:
        with self._stopped:
            while not self._stop.acquire(timeout=TICK_S):
                self._tick(ledger)

    def _tick(self, ledger: Ledger) -> None:
        now = monotonic_ns()
        progress = len(self.core.machine.trace.rows)
        if progress != self._progress:
            self._progress, self._moved_ns = progress, now
        if self._stuck_ns and self._moved_ns > self._stuck_ns:
            self._stuck_ns = 0
            ledger.say("stuck", [])
        ledger.put(PROGRESS_AT, progress)
        ledger.put(MOVED_AT, self._moved_ns)
        ledger.put(SEEN_AT, now)
        ledger.put(THREADS_AT, self._busy_threads())
        waits = now - min(self._waits.values(), default=now) > PATIENCE_NS
        if self._over:
            if self.failed and waits:  # in a call after one whose error the program caught
                self._look()
            return
        if os.path.exists(self._verdict()):
            self._verdict_ns = self._verdict_ns or now
            if now - self._verdict_ns > PATIENCE_NS and (self._waits or not self.lenient):
                self.end(self._said())
            return
        if waits:
            self._look()
        if now - self._moved_ns > self.stuck_after_ns and not self._stuck_ns and (not waits or self._busy_threads()):
            self._tell_where(ledger)

    def _busy_threads(self) -> int:
        """How many threads of this process may still call something though others of it wait."""
        if not self._waits:
            return 0
        frames = {ident: frame for ident, frame in sys._current_frames().items() if not is_own(frame)}
        if len(self._waits) + sum(map(waits_for_a_thread, frames.values())) >= len(frames):
            return 0
        living = (self._threads - self._lined_up) & frames.keys()
        return max(0, len(living) - len(self._waits))

    def _look(self) -> None:
        """Read what all ranks do; end where nothing has changed since the last look and nobody can go on."""
        entries = self._entries()
        stamp = [(entry.rank.rank, entry.stamp, entry.rank.ending) for entry in entries]
        if stamp == self._before and self.ledger is not None:
            notes = judge([self._stuck(entry) for entry in entries])
            ended = not self.failed and os.path.exists(self._verdict())  # a rank that is gone had ended by it
            if notes and not ended:
                if crosses_backends(notes):
                    self._refuse(notes)
                self.ledger.judged(notes)
                Path(self._verdict()).touch()
                self.end(notes)
        self._before = stamp

    def _stuck(self, entry: Entry) -> Rank:
        """A rank; one that has not answered for long, since something holds Python's lock there, counts as stuck."""
        rank = entry.rank
        if rank.ending is None and not rank.stuck and monotonic_ns() - entry.seen_ns > self.stuck_after_ns:
            last = rank.last()
            where = "" if last is None else f"{last.site}"
            return rank._replace(stuck=(where, "a call that holds Python's lock, or a process that was stopped"))
        return rank

    def _tell_where(self, ledger: Ledger) -> None:
        """This rank makes no progress: write down its stack once others wait for it, or say it where all are idle."""
        entries = self._entries()
        if any(call.state is State.WAITING for entry in entries for call in entry.rank.calls):
            ledger.say("stuck", stack(sys._current_frames().get(self._main), self._is_program))
            self._stuck_ns = monotonic_ns()
        elif len(entries) > 1 and self._idle_ns != self._moved_ns and ledger.rank == min(e.rank.rank for e in entries):
            now = monotonic_ns()
            if all(now - entry.moved_ns > self.stuck_after_ns and not entry.rank.ending for entry in entries):
                self._idle_ns = self._moved_ns
                where = stack(sys._current_frames().get(self._main), self._is_program)[0]
                seconds = self.stuck_after_ns / 1e9
                print(IDLE.format(seconds=f"{seconds:g}", rank=ledger.rank, where=where), file=sys.stderr)

    def _is_program(self, frame: FrameType) -> bool:
        return self.core.sites.is_program(frame)

    def _lost(self) -> list[Note]:
        """What is wrong, after a connection was lost: it may take a moment until a process is seen to have ended.

        Ctrl-C comes to one rank after another: where another one was interrupted, it may be on its way to this one.
        """
        notes: list[Note] = []
        for _ in range(round(LOST_S / TICK_S)):
            notes = judge([entry.rank for entry in self._entries()])
            if os.path.exists(self._verdict()):
                return self._said()
            if self.ledger is None or not all(map(by_keyboard, notes)):
                break
            sleep(TICK_S)
        return notes

    def _said(self) -> list[Note]:
        """What some rank has found wrong."""
        found: dict[Note, None] = {}
        for entry in self._entries():
            found.update(dict.fromkeys(entry.notes))
        return list(found)

    def end(self, notes: Sequence[Note]) -> None:
        """End this process, as NCCL's watchdog does: its threads wait in C++ for what never comes."""
        self._over = True
        self._dump()
        self._go(notes, lambda: os._exit(EXIT_CODE))

    def _refuse(self, notes: Sequence[Note]) -> None:
        """End this process where hardware may go on."""
        self._over = True
        Path(self._verdict()).touch()
        for entry in list(self._waits):  # nobody is to be blamed for them
            self.done(entry)
        text = CROSSED.format("; ".join(f"{who}: {what}" for who, what in notes[0].detail if who.startswith("rank")))
        variables.note_outcome(variables.REFUSED, text)
        print(text, file=sys.stderr)
        self._go((), lambda: os._exit(variables.REFUSED))

    def _go(self, notes: Sequence[Note], end: Callable[[], None]) -> None:
        """End this process after the last words of it."""
        if variables.FOLDER not in os.environ:
            print("\n".join(f"windtunnel: {words.sentence(note)}" for note in notes), file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        self.core.machine.trace.hand_on()
        end()

    def dump(self) -> bytes:
        """What this rank has called, as Flight Recorder dumps it."""
        if self.ledger is None or not nccl_settings.records():
            return flight_recorder.dump(Rank(0, {}, [], {}))
        return flight_recorder.dump(read(self.ledger.path).rank)

    def _dump(self) -> None:
        """Write the dump that NCCL's watchdog writes, where the program says where to."""
        prefix = next((os.environ[name] for name in DUMPS if name in os.environ), None)
        if prefix is not None and self.ledger is not None and nccl_settings.dumps():
            with suppress(OSError):  # what PyTorch logs and goes on from
                Path(f"{prefix}{self.ledger.rank}").write_bytes(self.dump())

    # ------------------------------------------------------------------ the others

    def _verdict(self) -> str:
        return os.path.join(self._folder, self.job + VERDICT)

    def _entries(self) -> list[Entry]:
        """The ledgers of this job's ranks on this machine; processes that are gone have ended."""
        found = []
        for path in sorted(Path(self._folder).glob(f"{self.job}-*{SUFFIX}")):
            try:
                entry = read(path)
            except (FileFormatError, OSError):  # one that is just being made
                continue
            if entry.rank.ending is None and not alive(entry.process):
                entry = entry._replace(rank=entry.rank._replace(ending=Ending("killed")))
            found.append(entry)
        return found


def _said_by_first(rank: int, store: Store) -> tuple[str, str, str]:
    """What rank 0 says to this one; a store that has served before may still hold what it said then.

    Raises:
        DistStoreError: rank 0 said nothing new within the store's timeout, after which PyTorch gives up as well.
    """
    until_ns = monotonic_ns() + round(store.timeout.total_seconds() * 1e9)
    while True:
        folder, host, job = json.loads(store.get(KEY))
        if not os.path.exists(os.path.join(folder, f"{job}-{rank}{SUFFIX}")):
            return folder, host, job
        if monotonic_ns() > until_ns:
            raise dist.DistStoreError(STALE.format(rank=rank, timeout_s=store.timeout.total_seconds()))
        sleep(TICK_S)


def is_detailed() -> bool:
    """Whether TORCH_DISTRIBUTED_DEBUG asks for everything."""
    return dist.distributed_c10d.get_debug_level() == dist.distributed_c10d.DebugLevel.DETAIL


def is_own(frame: FrameType) -> bool:
    """Whether a thread that is in `frame` is the emulation's, such as the watcher: all others begin elsewhere."""
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(OURS)


def waits_for_a_thread(frame: FrameType) -> bool:
    """Whether a thread that is in `frame` waits, without a limit, for what another thread of the process does."""
    code = frame.f_code
    if code.co_filename == concurrent.futures.thread.__file__:
        return code.co_name == "_worker"  # for work
    if code.co_filename != threading.__file__ or code.co_name not in ("wait", "join", "_wait_for_tstate_lock"):
        return False
    return frame.f_locals.get("timeout") in (None, -1)


def stack(frame: FrameType | None, is_program: Callable[[FrameType], bool]) -> list[str]:
    """The innermost line of the program, then the frames from the innermost on, as "file:line function"."""
    found: list[str] = []
    place = ""
    while frame is not None and len(found) < FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(OURS):
            found.append(f"{_short(code.co_filename)}:{frame.f_lineno} {code.co_name}")
            if not place and is_program(frame):
                place = found[-1]
        frame = frame.f_back
    return [place or (found[0] if found else ""), *found]


def _first_line(error: BaseException) -> str:
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _short(file: str) -> str:
    here = os.getcwd() + os.sep
    return file.removeprefix(here)


def _boot() -> str:
    """What tells one boot of a machine from another, and so machines of one name apart."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
