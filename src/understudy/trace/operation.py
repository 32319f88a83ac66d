"""What a program asks of a machine, as plain data: numbers, strings and tuples.

The seam builds these from framework calls, a test builds them by hand, `Machine.submit` consumes them. Devices are
indices into the machine's list of GPUs, streams are indices within a device (0 is the default stream), storages and
events are any integers that the caller chose. All times are whole nanoseconds, all sizes bytes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """The kind of one trace row; the comment says what the row's `value` column holds."""

    KERNEL = 0  # bytes read and written
    COPY = 1  # bytes moved
    COLLECTIVE = 2  # bytes moved by this rank
    EVENT_RECORD = 3  # event number
    EVENT_WAIT = 4  # event number
    SYNCHRONIZE = 5  # 0; `end_ns - start_ns` is how long the host waited
    CLOCK_READ = 6  # nanoseconds that the program read
    HAZARD = 7  # index into Trace.hazards
    HOST = 8  # host work that understudy knows about (input, sleep); its length in ns
    NOTE = 9  # index into Trace.notes: a fact about the program that a check needs
    STEP = 10  # number of the optimizer step that ends here
    QUEUE = 11  # launches that were pending: the host waited for room in a stream's queue
    BARRIER = 12  # lane number of the stream whose work so far this lane's later work waits for
    BATCH = 13  # samples that a DataLoader delivered to the program


class Site(NamedTuple):
    """A line of the program. `stack` holds the callers, innermost first, when stacks are kept."""

    file: str
    line: int
    function: str = ""
    stack: tuple[tuple[str, int, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "unknown line"


UNKNOWN_SITE = Site("", 0)

FIRST_USE = "first use: "
"""How the name of a row of the host's work begins that happens once a process and device."""


class Lane(NamedTuple):
    """Where a row happened. `device` -1 is the host; `thread` is the host thread's spawn index."""

    device: int
    stream: int
    thread: int = 0


class Signature(NamedTuple):
    """What decides an operation's cost: everything that `cost/` needs to price it on another GPU.

    `name` is the framework's name ("aten::addmm", "Memcpy HtoD (Pinned -> Device)", "cudaDeviceSynchronize").
    `shapes` and `dtypes` are of the inputs, then of the outputs after `inputs` entries. `flops` counts a multiply-add
    as two. `detail` is a tuple of (key, value) pairs for what else matters (layout, transposed, tf32, algorithm).
    """

    name: str
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    inputs: int = 0
    flops: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    detail: tuple[tuple[str, str | int], ...] = ()


class Kernel(NamedTuple):
    """A computation on one stream; `reads` and `writes` are storages or (storage, first byte, end byte) ranges."""

    name: str
    stream: int = 0
    device: int = 0
    signature: Signature | None = None
    duration_ns: int | None = None
    reads: frozenset[object] = frozenset()
    writes: frozenset[object] = frozenset()
    site: Site = UNKNOWN_SITE


class Copy(NamedTuple):
    """A transfer. A device of -1 is the host; `pinned` says whether the host side is page-locked.

    `stream` belongs to `device`, the side whose stream carries the copy.
    """

    source: int
    destination: int
    size_bytes: int
    device: int = 0
    stream: int = 0
    pinned: bool = False
    blocking: bool = True
    reads: frozenset[object] = frozenset()
    writes: frozenset[object] = frozenset()
    site: Site = UNKNOWN_SITE


class Collective(NamedTuple):
    """A collective operation of one rank; `ranks` is the group's size, `size_bytes` this rank's input."""

    name: str
    size_bytes: int
    ranks: int
    device: int = 0
    stream: int = 0
    reads: frozenset[object] = frozenset()
    writes: frozenset[object] = frozenset()
    site: Site = UNKNOWN_SITE


class EventRecord(NamedTuple):
    """Record `event` on a stream: it completes when all work before it on that stream has."""

    event: int
    stream: int = 0
    device: int = 0
    site: Site = UNKNOWN_SITE


class EventWait(NamedTuple):
    """Make a stream wait for the latest record of `event` at the time of this call."""

    event: int
    stream: int = 0
    device: int = 0
    site: Site = UNKNOWN_SITE


class Synchronize(NamedTuple):
    """Make the host wait: for one event, one stream, or (both None) the whole device."""

    device: int = 0
    stream: int | None = None
    event: int | None = None
    name: str = "cudaDeviceSynchronize"
    site: Site = UNKNOWN_SITE


class Allocate(NamedTuple):
    """Take device memory for `storage` from the caching allocator, on a stream."""

    storage: int
    size_bytes: int
    device: int = 0
    stream: int = 0
    site: Site = UNKNOWN_SITE


class Free(NamedTuple):
    """Give a storage's device memory back to the caching allocator."""

    storage: int
    site: Site = UNKNOWN_SITE


Operation = Kernel | Copy | Collective | EventRecord | EventWait | Synchronize | Allocate | Free


class Hazard(NamedTuple):
    """Two accesses without order, found while the program ran.

    `code` is the code of the check that reports it: "unsynchronized-access", "freed-in-use", "stale-read",
    "early-overwrite". `first` and `second` are the sites of the two accesses, `allocated` of the memory.
    """

    code: str
    first: Site
    second: Site
    first_lane: Lane
    second_lane: Lane
    first_access: str  # "read" or "write"
    second_access: str
    size_bytes: int
    allocated: Site = UNKNOWN_SITE


class Note(NamedTuple):
    """A fact about the program that only the seam can see, for a check: `code` of the check, site, numbers."""

    code: str
    site: Site
    detail: tuple[tuple[str, str | int], ...] = ()
