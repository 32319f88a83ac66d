"""A Trace: everything that happened in one process, in columns, with the tables that the columns refer to.

Saved as one gzip file: a line that names the format, a line of JSON (tables and facts), then the rows as little-endian
64-bit integers. The same program and seed give the same bytes: nothing in a trace depends on the wall clock, on
addresses of this process or on the order in which threads happened to run.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from windtunnel import foreign
from windtunnel.errors import FORMER_NAME, FileFormatError, renamed
from windtunnel.trace.columns import Numbers, columns, distinct
from windtunnel.trace.operation import NO_ROLE, UNKNOWN_SITE, Hazard, Kind, Lane, Note, Role, Signature, Site
from windtunnel.trace.plain import Json
from windtunnel.trace.rows import WIDTH, Rows
from windtunnel.trace.schema import Facts, Header
from windtunnel.trace.sources import Sources, collect, places, whole

MAGIC = "windtunnel-trace 2"
OF_THIS_MACHINE = ("compile_ns", "host_work", "host_from", "host_from_file", "command")
"""Facts of this machine and command, which would make each run's file another one: reports say them, files do not."""
NO_TRACE = "is not a windtunnel trace"
HOW = "write one with `windtunnel run --trace`"
MOST_NS = 1 << 62
MOST_DEVICES = 1 << 16
MOST_HEADER_BYTES = 256 << 20
"""What a trace may hold beside its rows: names, lines and blocks of memory."""
KINDS = tuple(Kind)
"""By their numbers."""
KIND, LANE, SIGNATURE, SITE, ISSUED, START, END, VALUE = range(8)

T = TypeVar("T")


class Record(NamedTuple):
    """One row, readable: what happened, where, when, and which line asked for it. Times are ns of the modelled clock.

    `issued_ns` is the host's time at the call, `start_ns` and `end_ns` the device's (or, for a synchronization, when
    the host began and ended its wait). `value` is described at `Kind`.
    """

    kind: Kind
    lane: Lane
    signature: Signature
    site: Site
    issued_ns: int
    start_ns: int
    end_ns: int
    value: int

    @property
    def duration_ns(self) -> int:
        """How long it took, in nanoseconds."""
        return self.end_ns - self.start_ns


class Numbering(dict[T, int]):
    """The numbers of a table's values; one that is asked for and new is added to the table."""

    def __init__(self, table: list[T]) -> None:
        super().__init__((value, number) for number, value in enumerate(table))
        self._table = table

    def __missing__(self, value: T) -> int:
        # Right with several threads too, without a lock: each finds an entry of its own value.
        size = len(self._table)
        self._table.append(value)
        number = self[value] = self._table.index(value, size)
        return number


class Table(list[T]):
    """A list of distinct values that knows each one's number."""

    def __init__(self, values: Iterable[T] = ()) -> None:
        super().__init__(values)
        self.numbers = Numbering(self)

    def number(self, value: T) -> int:
        """The number of `value`, which is added when it is new."""
        return self.numbers[value]


MEMORY_EXCESS, MEMORY_ROLE = 8, 44
"""Where the excess (in bytes) and the role begin in the last column of a memory row, whose lowest bits hold the
category."""
MOST_ROLES = 1 << (62 - MEMORY_ROLE)
"""Of which a trace can tell apart; what comes later has no role."""


class Held(NamedTuple):
    """What the last column of a memory row says of an allocation: numbers of category and role, bytes beyond those."""

    category: int
    excess_bytes: int
    role: int

    @classmethod
    def of(cls, value: int) -> Held:
        """As it is in a row."""
        return cls(value & 255, value >> MEMORY_EXCESS & (1 << MEMORY_ROLE - MEMORY_EXCESS) - 1, value >> MEMORY_ROLE)

    def packed(self) -> int:
        """As it goes into a row."""
        return self.role << MEMORY_ROLE | self.excess_bytes << MEMORY_EXCESS | self.category


class MemoryAction(NamedTuple):
    """One step of an allocator's history, with torch's own names for `action`.

    `action` is one of alloc, free_requested, free_completed, segment_alloc, segment_free, segment_map, segment_unmap,
    oom, snapshot; `address`, `size_bytes` as a driver would show them; `time_ns` the host's modelled time. Of an
    allocation `size_bytes` is what was asked for and `excess_bytes` how much larger the block is.
    """

    action: str
    device: int
    stream: int
    address: int
    size_bytes: int
    time_ns: int
    site: Site
    category: str = ""
    excess_bytes: int = 0
    role: Role = NO_ROLE


MEMORY_ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
)
MEMORY_CATEGORIES = (
    "", "parameter", "gradient", "optimizer", "activation", "temporary", "workspace", "input", "autocast",
    "retained", "communication",
)  # fmt: skip


class Trace:
    """What one process did on its devices.

    `facts` holds plain JSON: "gpus" (one dict a device: name, memory_bytes, ...), "options", "versions", "program",
    "rank", "devices" (per-device totals, filled in when the emulation ends: peak_allocated_bytes,
    peak_at_most_bytes, peak_unsure and peak_band (how sure that is), peak_reserved_bytes, context_bytes,
    memory_bytes), "source" ("modelled" or "measured") and "band" (the relative error band of the durations, a float).
    `sources` holds the program's lines around those that the trace names; `folder` is where the program runs, whose
    files they are taken from, and None of a trace that was read from a file.
    """

    def __init__(self) -> None:
        self.rows = Rows()
        self.memory = Rows()
        self.lanes: Table[Lane] = Table()
        self.signatures: Table[Signature] = Table()
        self.sites: Table[Site] = Table([UNKNOWN_SITE])
        self.roles: Table[Role] = Table([NO_ROLE])
        self.hazards: list[Hazard] = []
        self.notes: list[Note] = []
        self.facts: Json = {"source": "modelled"}
        self.sources: Sources = {}
        self.folder: str | None = None
        self.sink: Callable[[], None] | None = None
        """What takes the rows out of this process as they come, where it leaves them to another one."""

    def hand_on(self, thread: int = 0) -> None:
        """Let the sink have what there is: at a wait of the host, and when a device is first used.

        Only the first host thread does: pouring the buffer out is one thread's work.
        """
        if self.sink is not None and thread == 0:
            self.sink()

    def spill(self) -> None:
        """Pour the rows that are buffered into their array, and let the sink have them."""
        self.rows.spill()
        self.hand_on()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_idle(self) -> bool:
        """Whether no work is recorded: at most threads started and ended."""
        return all(row[0] in (Kind.FORK, Kind.JOIN) for row in self.rows)

    def __iter__(self) -> Iterator[Record]:
        lanes, signatures, sites = self.lanes, self.signatures, self.sites
        for kind, lane, signature, site, issued, start, end, value in self.rows:
            yield Record(KINDS[kind], lanes[lane], signatures[signature], sites[site], issued, start, end, value)

    def memory_actions(self) -> Iterator[MemoryAction]:
        """The allocators' history, in order; empty unless the history was kept."""
        for action, device, stream, address, size, time, site, value in self.memory:
            held = Held.of(value)
            yield MemoryAction(
                MEMORY_ACTIONS[action],
                device,
                stream,
                address,
                size,
                time,
                self.sites[site],
                MEMORY_CATEGORIES[held.category],
                held.excess_bytes,
                self.roles[held.role],
            )

    def line(self, site: Site) -> str:
        """The text of a line of the program; empty where nothing is known of it."""
        return self.near(site).get(site.line, "")

    def text(self, file: str) -> str:
        """The whole of a file of the program; empty where the program did not run just now, in `folder`."""
        return "" if self.folder is None else whole(file, self.folder)

    def near(self, site: Site) -> dict[int, str]:
        """The lines known of a site's file by number, those around the site among them."""
        if self.folder is not None and site.line not in self.sources.get(site.file, {}):
            collect(self.sources, [site], self.folder)
        return self.sources.get(site.file, {})

    def keep_sources(self) -> None:
        """Take all lines that the trace names from the program's files, before it is read elsewhere."""
        if self.folder is not None:
            collect(self.sources, places(self), self.folder)

    def end_ns(self) -> int:
        """When the last thing ended, host or device, in nanoseconds since the emulation began."""
        return max((int(found[[ISSUED, END]].max()) for found in columns(self.rows)), default=0)

    def since(self, first: int) -> Trace:
        """The rows from number `first` on, with this trace's tables; without totals and history, which have no rows."""
        out = Trace()
        out.lanes, out.signatures, out.sites = self.lanes, self.signatures, self.sites
        out.hazards, out.notes = self.hazards, self.notes
        out.facts = {**self.facts, "devices": []}
        out.sources, out.folder = self.sources, self.folder
        out.rows = self.rows.since(first)
        return out

    def remark(self, note: Note) -> None:
        """Add a fact for a check that became known after the end."""
        now = max(self.rows.column(ISSUED), default=0)
        self.notes.append(note)
        lane, name = self.lanes.number(Lane(-1, 0)), self.signatures.number(Signature(note.code))
        self.rows.append((Kind.NOTE, lane, name, self.sites.number(note.site), now, now, now, len(self.notes) - 1))

    def canonical(self) -> Trace:
        """The same trace ordered by (issue time, thread, order in the thread), its tables numbered by first use."""
        out = Trace()
        out.facts, out.sources, out.folder = self.facts, self.sources, self.folder
        renumber = _Renumber(self, out)
        threads = {number: lane.thread for number, lane in enumerate(self.lanes)}
        rows = self.rows
        if len(set(threads.values())) > 1:
            ordered = sorted(rows, key=lambda row: (row[ISSUED], threads[row[LANE]]))
            # Steps were counted as the threads came to them, in an order that the operating system chose.
            numbers = iter(sorted(row[VALUE] for row in ordered if row[KIND] == Kind.STEP))
            rows = Rows()
            for row in ordered:
                rows.append((*row[:7], next(numbers)) if row[KIND] == Kind.STEP else row)
        for found in columns(rows):
            renumber.rows(found)
        for found in columns(self.memory):
            renumber.memory(found)
        return out

    def save(self, path: str | Path) -> None:
        """Write the canonical form to `path`; raises OSError when that cannot be done."""
        self.keep_sources()
        canonical = self.canonical()
        header = {
            "facts": {key: value for key, value in canonical.facts.items() if key not in OF_THIS_MACHINE},
            "rows": len(canonical.rows),
            "memory": len(canonical.memory),
            "lanes": canonical.lanes,
            "signatures": canonical.signatures,
            "sites": canonical.sites,
            "roles": canonical.roles,
            "hazards": canonical.hazards,
            "notes": canonical.notes,
            "sources": canonical.sources,
        }
        text = json.dumps(header, separators=(",", ":"), sort_keys=True)
        data = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=data, compresslevel=6, mtime=0) as file:
            file.write(f"{MAGIC}\n{text}\n".encode())
            file.write(canonical.rows.to_bytes())
            file.write(canonical.memory.to_bytes())
        Path(path).write_bytes(data.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace that `save` wrote.

        Raises:
            FileFormatError: the file is not a trace of ours, or not of a version that this windtunnel reads.
            OSError: the file cannot be read.
        """
        data = foreign.read_bytes(path)
        if data[:2] != foreign.GZIP:
            foreign.refuse_program(path)
            raise FileFormatError(f"{path} {NO_TRACE} (it is not compressed); {HOW}")
        start = foreign.beginning(data, path, MOST_HEADER_BYTES)
        parts = start.split(b"\n", 2)
        if len(parts) < 3:
            why = "it ends early" if len(start) < MOST_HEADER_BYTES else "its header has no end"
            raise FileFormatError(f"{path} {NO_TRACE} ({why}); {HOW}")
        magic, header = parts[:2]
        size = len(magic) + len(header) + 2
        del start, parts
        if magic.startswith(FORMER_NAME.encode()):
            raise FileFormatError(renamed(f"the trace {path}", "record it again with `windtunnel run --trace`"))
        if magic.decode(errors="replace") != MAGIC:
            raise FileFormatError(
                f"{path} says {magic[:40].decode(errors='replace')!r} where this windtunnel reads {MAGIC!r}; "
                "write it again with this version"
            )
        plain = foreign.from_json(header, path, "a trace")
        # The header says how long the file is: no more of it is unpacked.
        return parse(plain, foreign.unpacked(data, path, size + _body_bytes(plain))[size:], str(path))


def origin(facts: Json) -> Json:
    """What PyTorch's memory snapshots do not say of a run: whether its GPUs were emulated, their names and memory."""
    gpus = [{key: gpu[key] for key in ("name", "memory_bytes") if key in gpu} for gpu in facts.get("gpus", ())]
    return {"source": facts.get("source", "modelled"), "gpus": gpus}


def parse(header: object, body: bytes, path: str) -> Trace:
    """The trace of a header and rows as `Trace.save` writes them.

    Raises:
        FileFormatError: something in them is not what it should be.
    """
    plain, known = _checked(header, path)
    end = known.get("rows", 0) * WIDTH * 8
    if len(body) != end + known.get("memory", 0) * WIDTH * 8:
        raise FileFormatError(f"{path} is truncated: it should have {known.get('rows', 0)} rows; write it again")
    return _built(plain, known, Rows.from_bytes(body[:end]), Rows.from_bytes(body[end:]), path)


def built(header: object, rows: Rows, memory: Rows, path: str) -> Trace:
    """The trace of a header and of rows that its tables belong to.

    Raises:
        FileFormatError: something in them is not what it should be.
    """
    return _built(*_checked(header, path), rows, memory, path)


def _checked(header: object, path: str) -> tuple[Json, Header]:
    """A header as plain data, and as what it was checked to be."""
    plain = foreign.printable(header, path)
    return plain, foreign.typed(plain, Header, path, "is damaged in its header")


def _built(plain: Json, known: Header, rows: Rows, memory: Rows, path: str) -> Trace:
    trace = Trace()
    trace.rows, trace.memory = rows, memory
    trace.lanes, trace.signatures = Table(known["lanes"]), Table(known["signatures"])
    trace.sites, trace.hazards, trace.notes = Table(known["sites"]), known["hazards"], known["notes"]
    trace.roles = Table(known.get("roles") or [NO_ROLE])
    trace.facts = plain.get("facts", {})
    trace.sources = _numbered(known.get("sources", {}))
    require_sound(trace, path)
    return trace


def _body_bytes(header: object) -> int:
    """How many bytes of rows follow a header that nothing is known of yet."""
    counts = [header.get(name) for name in ("rows", "memory")] if isinstance(header, dict) else []
    return sum(max(count, 0) for count in counts if isinstance(count, int)) * WIDTH * 8


def _numbered(sources: dict[str, dict[str, str]]) -> Sources:
    """Source lines as JSON has them, whose keys are texts, by number."""
    return {
        file: {int(number): text for number, text in lines.items() if number.isdecimal()}
        for file, lines in sources.items()
    }


def require_sound(trace: Trace, path: str | Path) -> None:
    """Make sure of a trace from a file that its rows refer to entries that there are, and what its facts hold.

    Raises:
        FileFormatError: a number is out of range.
    """
    foreign.typed(trace.facts, Facts, path, "is damaged in its facts")
    sizes = {
        KIND: len(Kind),
        LANE: len(trace.lanes),
        SIGNATURE: len(trace.signatures),
        SITE: len(trace.sites),
        ISSUED: MOST_NS,
        START: MOST_NS,
        END: MOST_NS,
    }
    limits = np.full(len(Kind), MOST_NS)
    limits[[Kind.HAZARD, Kind.NOTE, Kind.BARRIER]] = len(trace.hazards), len(trace.notes), len(trace.lanes)
    for found in columns(trace.rows):
        for column, size in sizes.items():
            _require_below(found[column], column, size, path)
        wrong = (found[VALUE] < 0) | (found[VALUE] >= limits[found[KIND]]) | (found[END] < found[START])
        if wrong.any():
            row = tuple(found[:, int(wrong.argmax())].tolist())
            raise FileFormatError(f"{path} is damaged: a row of kind {Kind(row[KIND]).name} holds {row[START:]}")
    memory = {0: len(MEMORY_ACTIONS), 1: MOST_DEVICES, 6: len(trace.sites)}
    for found in columns(trace.memory):
        for column in range(WIDTH):
            _require_below(found[column], column, memory.get(column, MOST_NS), path)
        if (found[7] & 255).max() >= len(MEMORY_CATEGORIES):
            raise FileFormatError(f"{path} is damaged: its allocations have unknown categories")
        if (found[7] >> MEMORY_ROLE).max() >= len(trace.roles):
            raise FileFormatError(f"{path} is damaged: its allocations have unknown roles")
    if any(not -1 <= lane.device < MOST_DEVICES or not 0 <= lane.stream < MOST_NS for lane in trace.lanes):
        raise FileFormatError(f"{path} is damaged: it names devices that do not exist")


def _require_below(numbers: Numbers, column: int, size: int, path: str | Path) -> None:
    if not 0 <= numbers.min() <= numbers.max() < size:
        raise FileFormatError(f"{path} is damaged: column {column} of its rows holds numbers beyond {size:,}")


class _Renumber:
    """Gives the entries of one trace's tables the numbers of their first use in another."""

    def __init__(self, old: Trace, new: Trace) -> None:
        self.old = old
        self.new = new
        names = "lanes", "signatures", "sites", "roles", "hazards", "notes"
        self.numbers = {name: np.full(len(getattr(old, name)), -1) for name in names}
        self.numbers["roles"][:1] = 0

    def rows(self, found: Numbers) -> None:
        """Add a block of rows, given as columns."""
        for column, name in ((LANE, "lanes"), (SIGNATURE, "signatures"), (SITE, "sites")):
            found[column] = self._table(name, found[column])
        for kind, name in ((Kind.HAZARD, "hazards"), (Kind.NOTE, "notes")):
            which = found[KIND] == kind
            if which.any():
                found[VALUE, which] = self._list(name, found[VALUE, which])
        which = found[KIND] == Kind.BARRIER
        found[VALUE, which] = self._table("lanes", found[VALUE, which])
        self.new.rows.extend(found.T.astype("<i8").tobytes())

    def memory(self, found: Numbers) -> None:
        """Add a block of the history."""
        role = found[7] >> MEMORY_ROLE
        found[6] = self._table("sites", found[6])
        found[7] += self._table("roles", role) - role << MEMORY_ROLE
        self.new.memory.extend(found.T.astype("<i8").tobytes())

    def _table(self, name: str, used: Numbers) -> Numbers:
        numbers, old, new = self.numbers[name], getattr(self.old, name), getattr(self.new, name)
        for one in distinct(used[numbers[used] < 0])[0]:
            numbers[one] = new.number(old[one])
        return numbers[used]

    def _list(self, name: str, used: Numbers) -> Numbers:
        numbers, old, new = self.numbers[name], getattr(self.old, name), getattr(self.new, name)
        for one in distinct(used[numbers[used] < 0])[0]:
            numbers[one] = len(new)
            new.append(old[one])
        return numbers[used]
