"""What happens on a machine, as plain data: kinds of rows, and what their columns number.

The verbs of `machine.Machine` write the rows. Devices are indices into the machine's list of GPUs, streams are indices
within a device (0 is the default stream). All times are whole nanoseconds, all sizes bytes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from windtunnel import foreign


class Kind(IntEnum):
    """The kind of one trace row; the comment says what the row's `value` column holds.

    What ranks do together has rows in front of that of its work: a call with its `Signature`, whose `detail` names the
    "group" and, for a message, the other rank as "peer" and the "tag". A POST is where the program posts a message; its
    `site` is the message's in all of its rows. A MEETING is where a call begins: this rank is ready for it at
    `start_ns`, the last of those that take part at `end_ns`. A lane of the host says that the host itself waits (gloo).
    """

    KERNEL = 0  # bytes read and written
    COPY = 1  # bytes moved
    COLLECTIVE = 2  # bytes moved by this rank
    EVENT_RECORD = 3  # event number
    EVENT_WAIT = 4  # event number
    SYNCHRONIZE = 5  # number of the event that the host waited for, else 0; it waited for `end_ns - start_ns`
    CLOCK_READ = 6  # nanoseconds that the program read
    HAZARD = 7  # index into Trace.hazards
    HOST = 8  # host work that windtunnel knows about (input, sleep); its length in ns
    NOTE = 9  # index into Trace.notes: a fact about the program that a check needs
    STEP = 10  # number of the optimizer step that ends here
    QUEUE = 11  # launches that were pending: the host waited for room in a stream's queue
    BARRIER = 12  # lane number of the stream whose work so far this lane's later work waits for
    BATCH = 13  # samples that a DataLoader delivered to the program
    POST = 14  # number of the launch that a message goes with: those that were batched share one
    MEETING = 15  # number of a collective in its group, or of a message's launch
    FORK = 16  # number of the thread that starts this one, which stands at `start_ns`
    JOIN = 17  # number of the thread that this one has waited for since `start_ns`


class Site(NamedTuple):
    """A line of the program. `stack` holds the callers, innermost first, when stacks are kept."""

    file: str
    line: int
    function: str = ""
    stack: tuple[tuple[str, int, str], ...] = ()

    def __str__(self) -> str:
        return written(self.file, self.line) if self.file else "unknown line"


def written(file: str, line: int) -> str:
    """A line as a person finds it: `train.py:12`, and of a notebook `Cell In[10], line 3`, as in its tracebacks."""
    file = foreign.line(file)
    return f"{file}, line {line}" if file.startswith(CELL) else f"{file}:{line}"


CELL = "Cell In["
"""How the name of a notebook's cell begins where a file's name would stand."""
UNKNOWN_SITE = Site("", 0)
UNKNOWN_GPU = "unknown GPU"
"""The name of a GPU where a recording does not tell its model."""

LAUNCH_GAP_NS = 100_000
"""A longer pause of the host is no launch: issuing one operation takes 2 to 30 µs in eager PyTorch."""

LIBRARYS_SLEEP = "time.sleep of a library"
"""The name of a row where a library sleeps, such as one that polls for a lock that another process holds."""
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


REUSED = "reused"
"""The detail of a signature, its last, that says of which part of its bytes the reuse distance is known."""


def without_reuse(signature: Signature) -> Signature:
    """The same call, whatever L2 holds of its operands."""
    detail = signature.detail
    return signature._replace(detail=detail[:-1]) if detail and detail[-1][0] == REUSED else signature


class Role(NamedTuple):
    """Whose a block of memory is: of which module (by its path, below the class of the model), which operator made it.

    `tensor` names it where it has a name: a parameter, or what an optimizer keeps for one ("exp_avg of weight").
    """

    module: str = ""
    operator: str = ""
    tensor: str = ""


NO_ROLE = Role()


class Hazard(NamedTuple):
    """Two accesses without order, found while the program ran.

    `code` is the code of the check that reports it: "unsynchronized-access", "freed-in-use", "stale-read",
    "early-overwrite", "cuda-early-use". `first` and `second` are the sites of the two accesses, `allocated` of the
    memory.
    """

    code: str
    first: Site
    second: Site
    first_lane: Lane
    second_lane: Lane
    first_access: str  # "read", "write", or "staged": a copy from pageable memory that has returned
    second_access: str
    size_bytes: int
    allocated: Site = UNKNOWN_SITE


class Note(NamedTuple):
    """A fact about the program that only the seam can see, for a check: `code` of the check, site, numbers."""

    code: str
    site: Site
    detail: tuple[tuple[str, str | int], ...] = ()
