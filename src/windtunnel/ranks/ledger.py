"""The calls of one rank, in a file that others can read while it is being written and after its process was killed.

The first part has a fixed size and is mapped into memory: a header, the number of calls in each channel, and a ring of
the latest calls. All are 64-bit integers, so a call costs a few stores and no system call. Texts (operations, lines,
channels, groups, how the process ended) follow as lines of JSON, to which the ring refers by number.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from windtunnel import foreign
from windtunnel.errors import FileFormatError
from windtunnel.ranks.calls import Call, Channel, Ending, Group, Operation, Rank, State
from windtunnel.ranks.replicas import Weights
from windtunnel.ranks.samplers import Epoch
from windtunnel.trace.operation import Note, Site

SUFFIX = ".calls"
MAGIC = int.from_bytes(b"wt-call1", "little")
HEAD = struct.Struct("<12q")
CHANNELS, RING = 2048, 2048
COUNT, CALL = struct.Struct("<q"), struct.Struct("<8q")
COUNTS_AT = HEAD.size
THREAD = (1 << 62) - 1
RING_AT = COUNTS_AT + CHANNELS * COUNT.size
FIXED = RING_AT + RING * CALL.size
STATE_AT, ENDED_AT = 4 * 8, 6 * 8

MAGIC_AT, PROCESS_AT, RANK_AT, CALLS_AT, SEEN_AT, PROGRESS_AT, MOVED_AT, THREADS_AT, MAIN_AT = range(9)
"""Places in the head: the format, the process, its rank, how many calls it has made, when its watcher last looked, how
much work it has given to its devices and when that last grew, how many threads of it are at work though others wait,
and which is its main thread (times as of `time.monotonic_ns`, which the processes of a machine share)."""


class TextNumbers(dict[tuple[str, object], int]):
    """The numbers of texts, from 0 on in each kind: a text is said when it is first asked for."""

    def __init__(self, say: Callable[[str, object], None]) -> None:
        super().__init__()
        self._say = say
        self._sizes: Counter[str] = Counter()

    def __missing__(self, key: tuple[str, object]) -> int:
        kind, value = key
        self._say(kind, value)
        number = self[key] = self._sizes[kind]
        self._sizes[kind] += 1
        return number


class Ledger:
    """Writes the calls of this process, which begins at `now_ns` of the clock of the head's times.

    Until its watcher first looks, which a busy machine may put off for seconds, it was seen and has moved then.
    """

    def __init__(self, path: str, job: str, rank: int, host: str, now_ns: int) -> None:
        self.path = path
        self.rank = rank
        self.counts: dict[Channel, int] = {}
        self._lock = threading.Lock()
        self._numbers = TextNumbers(self.say)
        self._calls = 0
        with open(path, "xb+") as file:
            file.truncate(FIXED)
            self._map = mmap.mmap(file.fileno(), FIXED)
        main = (threading.main_thread().ident or 0) & THREAD
        HEAD.pack_into(self._map, 0, 0, os.getpid(), rank, 0, now_ns, 0, now_ns, 0, main, *[0] * 3)
        self.say("job", {"job": job, "host": host})
        self.put(MAGIC_AT, MAGIC)  # from here on it is one that others read

    # ------------------------------------------------------------------ texts

    def say(self, kind: str, content: object) -> None:
        """Add a line of text."""
        line = json.dumps([kind, content], separators=(",", ":")).encode() + b"\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)  # a program may close every file it does not know
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    # ------------------------------------------------------------------ calls

    def add(self, channel: Channel, operation: Operation, site: Site, state: State, now_ns: int) -> int:
        """Record a call; returns its entry."""
        with self._lock:
            entry = self._calls
            count = self.counts[channel] = self.counts.get(channel, 0) + 1
            numbers = self._numbers
            number = numbers["channel", channel]
            row = number, count, numbers["operation", operation], numbers["site", site[:3]], int(state)
            CALL.pack_into(
                self._map, RING_AT + entry % RING * CALL.size, *row, now_ns, 0, threading.get_ident() & THREAD
            )
            if number < CHANNELS:
                COUNT.pack_into(self._map, COUNTS_AT + number * COUNT.size, count)
            self._calls = entry + 1
            COUNT.pack_into(self._map, CALLS_AT * 8, self._calls)
        return entry

    def mark(self, entry: int, state: State, now_ns: int = 0) -> None:
        """Record how far a call has progressed."""
        if self._calls - entry > RING:
            return
        at = RING_AT + entry % RING * CALL.size
        COUNT.pack_into(self._map, at + STATE_AT, int(state))
        if now_ns:
            COUNT.pack_into(self._map, at + ENDED_AT, now_ns)

    def put(self, place: int, value: int) -> None:
        """Write a number of the header."""
        COUNT.pack_into(self._map, place * 8, value)

    def ended(self, ending: Ending) -> None:
        """Record how the process ends; the first record counts. A rank that outlives the run tells nobody."""
        with suppress(FileNotFoundError):
            self.say("ending", ending)

    def judged(self, notes: Sequence[Note]) -> None:
        """Record what was found wrong."""
        for note in notes:
            self.say("note", note)


class Entry(NamedTuple):
    """The content of a ledger: what `Rank` holds, and what shows whether its process makes progress."""

    rank: Rank
    process: int
    job: str
    host: str
    seen_ns: int
    progress: int
    moved_ns: int
    notes: tuple[Note, ...]
    epochs: tuple[Epoch, ...]
    weights: tuple[Weights, ...]
    stamp: tuple[object, ...]
    """What changes whenever the rank does anything that a judgement depends on."""


def read(path: str | Path) -> Entry:
    """Read a process's ledger, even while it is being written.

    Raises:
        FileFormatError: the file is not a ledger.
        OSError: it cannot be read.
    """
    data = foreign.read_bytes(path)
    if len(data) < FIXED or HEAD.unpack_from(data)[MAGIC_AT] != MAGIC:
        raise FileFormatError(f"{path} is not a record of a rank's calls")
    head = HEAD.unpack_from(data)
    texts = _texts(data[FIXED:], path)
    typed = foreign.typed(texts, _Texts, path, "is damaged")
    calls = list(_calls(data, head[CALLS_AT], typed))
    counts = {
        channel: COUNT.unpack_from(data, COUNTS_AT + number * COUNT.size)[0]
        for number, channel in enumerate(typed.channel[:CHANNELS])
    }
    ending = next((one for one in typed.ending if one.how != "finished"), typed.ending[0] if typed.ending else None)
    stuck = typed.stuck[-1] if typed.stuck else ()
    groups: Mapping[str, Group] = dict(typed.group)
    rank = Rank(head[RANK_AT], groups, calls, counts, ending, stuck, head[THREADS_AT], head[MAIN_AT])
    open_calls = tuple((call.channel, call.number, int(call.state)) for call in calls if call.state is not State.DONE)
    stamp = (head[CALLS_AT], open_calls, ending, stuck, head[THREADS_AT])
    job = typed.job[0] if typed.job else {}
    return Entry(
        rank, head[PROCESS_AT], job.get("job", ""), job.get("host", ""), head[SEEN_AT], head[PROGRESS_AT],
        head[MOVED_AT], tuple(typed.note), tuple(typed.epoch), tuple(typed.weights), stamp,
    )  # fmt: skip


class _Texts(msgspec.Struct):
    job: list[dict[str, str]] = msgspec.field(default_factory=list)
    channel: list[Channel] = msgspec.field(default_factory=list)
    operation: list[Operation] = msgspec.field(default_factory=list)
    site: list[Site] = msgspec.field(default_factory=list)
    group: list[tuple[str, Group]] = msgspec.field(default_factory=list)
    ending: list[Ending] = msgspec.field(default_factory=list)
    stuck: list[tuple[str, ...]] = msgspec.field(default_factory=list)
    note: list[Note] = msgspec.field(default_factory=list)
    epoch: list[Epoch] = msgspec.field(default_factory=list)
    weights: list[Weights] = msgspec.field(default_factory=list)


def _texts(data: bytes, path: str | Path) -> dict[str, list[Any]]:
    """The texts by kind; a line that is still being written has no newline yet."""
    found: dict[str, list[Any]] = {}
    for line in data.split(b"\n")[:-1]:
        value = foreign.from_json(line, path, "a record of what a rank called")
        if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str):
            found.setdefault(value[0], []).append(value[1])
    return found


def _calls(data: bytes, made: int, texts: _Texts) -> list[Call]:
    found = []
    for entry in range(max(0, made - RING), made):
        row = CALL.unpack_from(data, RING_AT + entry % RING * CALL.size)
        channel, number, operation, site, state, issued, ended, thread = row
        # A text that was written after this copy of the file was begun is not in it.
        if channel < len(texts.channel) and operation < len(texts.operation) and site < len(texts.site):
            place = texts.site[site]
            what = texts.operation[operation]
            found.append(Call(texts.channel[channel], number, what, place, State(state), issued, ended, thread))
    return found


def alive(process: int) -> bool:
    """Whether a process of this machine is alive; a zombie is not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text("ascii", "replace").rpartition(") ")[2][:1]
        return state not in ("Z", "X")
    except OSError:
        if os.path.isdir("/proc/self"):
            return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
