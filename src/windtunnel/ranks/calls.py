"""The calls that a rank makes to others, as plain data: the same for running ranks and for dumps of real clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from windtunnel.trace.operation import UNKNOWN_SITE, Site


class State(IntEnum):
    """How far a call has progressed on its rank."""

    ISSUED = 0  # the rank has gone on; nobody waits for it yet
    WAITING = 1  # a thread of the rank waits in it
    DONE = 2


ON_CPU = " on the CPU"
"""Ends the name of the half of a process group that is the CPU's own backend, in no order with the GPU's."""


class Channel(NamedTuple):
    """Calls that are matched by their order: the collectives of a group, or its messages from one rank to another.

    `kind` is "collective", "send", "recv", "create" (of a group) or "join" (of an NCCL communicator). `peer` is the
    other rank of a message, -1 for any; ranks are those of the job, not of the group. `pair` tells whether a message
    has a communicator of its two ranks alone.
    """

    group: str
    kind: str = "collective"
    peer: int = -1
    tag: int = 0
    pair: bool = False


NEW_GROUP = "new_group"
"""The operation that makes a group, whose elements are its members."""


class Operation(NamedTuple):
    """What was called, under PyTorch's name.

    `elements` are the numbers of elements on which all ranks must agree. Where each pair of ranks has its own number,
    `sent[i]` elements go to the i-th rank of the group and `received[i]` are expected from it. `root` is a rank of the
    group, `stream` the number of the stream on its device.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    elements: tuple[int, ...] = ()
    reduction: str = ""
    root: int = -1
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    stream: int = 0

    def __str__(self) -> str:
        if self.name == NEW_GROUP:
            return f"{self.name}({list(self.elements)})"
        dtypes = self.dtypes if len(set(self.dtypes)) > 1 else self.dtypes[:1] * len(self.shapes)
        tensors = [f"{dtype}{list(shape)}" for dtype, shape in zip(dtypes, self.shapes, strict=False)]
        if len(tensors) > SHOWN:
            tensors[SHOWN:] = [f"{len(tensors) - SHOWN} more"]
        if self.reduction:
            tensors.append(self.reduction)
        if self.root >= 0:
            tensors.append(f"root {self.root}")
        return f"{self.name}({', '.join(tensors)})"


SHOWN = 4
"""Tensors of a list that a sentence shows."""


class Call(NamedTuple):
    """A rank's `number`-th call in a channel, counted from 1; times are in nanoseconds since 1970, 0 if unknown."""

    channel: Channel
    number: int
    operation: Operation
    site: Site = UNKNOWN_SITE
    state: State = State.DONE
    issued_ns: int = 0
    ended_ns: int = 0
    thread: int = 0


class Ending(NamedTuple):
    """How a rank's process ended: `how` is "finished", "exception", "exit" or "killed", `text` gives details.

    "absent" is a rank that was still running but made no call.
    """

    how: str
    text: str = ""
    site: Site = UNKNOWN_SITE


class Group(NamedTuple):
    """A process group: the name that its creator gave it, and its ranks in the job."""

    description: str
    ranks: tuple[int, ...]


class Rank(NamedTuple):
    """Everything known about one rank: its groups by name and its latest calls, oldest first.

    `counts` is the number of calls made in each channel; `calls` may lack the older ones. `ending` is None while the
    process lives. `stuck` is set for a rank that makes no progress: its program's line, then its stack from the
    innermost frame on, each as "file:line function". `working` counts the threads that may still make a call although
    other threads of the process wait; `main` is the main thread, 0 if unknown.
    """

    rank: int
    groups: Mapping[str, Group]
    calls: Sequence[Call]
    counts: Mapping[Channel, int]
    ending: Ending | None = None
    stuck: tuple[str, ...] = ()
    working: int = 0
    main: int = 0

    def call(self, channel: Channel, number: int) -> Call | None:
        """The call with this number; None if it has not been made or is no longer known."""
        return next((call for call in reversed(self.calls) if call[:2] == (channel, number)), None)

    def last(self) -> Call | None:
        """The latest call."""
        return self.calls[-1] if self.calls else None


def listed(ranks: Sequence[int]) -> str:
    """Ranks as text: "rank 3", "ranks 0-3, 6"."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs]
    return f"{'rank' if len(set(ranks)) == 1 else 'ranks'} {', '.join(words)}"
