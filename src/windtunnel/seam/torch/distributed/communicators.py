"""NCCL's communicators as messages see them: which one a message uses, what waits in line on it, and how it is made.

A batched message (`batch_isend_irecv`) uses the communicator of its group, as collectives do. A plain one uses a
communicator of the two ranks alone, which is made when it is first used; where the group was given its device
(`device_id`), it uses the group's. Whoever makes a communicator waits on the host for every rank of it, and what is
queued on one runs in the order of the calls. Source: `ProcessGroupNCCL::pointToPoint` and `initNCCLComm`
(torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from time import sleep
from typing import NamedTuple, Protocol

from windtunnel.machine.stream import Stream
from windtunnel.ranks.calls import Channel, Operation, State
from windtunnel.seam.torch.distributed.to_itself import ToItself

ALL = -1
"""In place of a peer: the communicator of the whole group."""
BUFFERED_BYTES = 16 << 10
"""Up to this size NCCL sends by protocol LL (NCCL_P2P_LL_THRESHOLD), whose buffer takes a message that nobody receives
yet."""
BUFFERED = 8
"""Messages to one rank that this buffer takes (NCCL_STEPS of NCCL's src/include/device.h)."""
PAUSE_S = 0.002
MAKING = Operation("communicator")
NCCL_TAGS, CLOCK_TAGS = 1 << 29, 1 << 30
"""Added to the tags of NCCL's messages, and to those of the senders' clocks that travel beside them."""


class InFlight(Protocol):
    """A message that was posted and is not known to have arrived."""

    sent_to: int
    batch: int
    size: int

    def settle(self) -> None:
        """Wait for it."""


class Communicator:
    """One communicator of this rank: `peer` is the other rank's number in the group, `ALL` for that of all ranks.

    `streams` and `connected` (the bytes that it takes) are by device. `counts` numbers the messages by kind and peer.
    `begins_ns` is when the kernel of the latest `batch` may begin.
    """

    def __init__(self, peer: int = ALL) -> None:
        self.peer = peer
        self.streams: dict[int, Stream] = {}
        self.connected: dict[int, int] = {}
        self.counts: Counter[tuple[str, int]] = Counter()
        self.to_itself = ToItself()
        self.in_flight: list[InFlight] = []
        self.batch = 0
        self.begins_ns = 0
        self.party: Party | None = None
        self.entry = -1
        self.joined = False

    def line_up(self, batch: int, collective: bool = False) -> None:
        """Wait for what is in line before an operation of `batch` (0: of none): it holds up everything behind it.

        A message that NCCL's buffer takes holds up no other message.
        """
        if not self.in_flight:
            return
        left = Counter(one.sent_to for one in self.in_flight)
        for one in [*self.in_flight]:
            if one.batch == batch and batch:
                continue
            if collective or one.sent_to < 0 or one.size > BUFFERED_BYTES or left[one.sent_to] >= BUFFERED:
                one.settle()
                left[one.sent_to] -= 1


def wire_tag(pair: bool, number: int, size: int) -> int:
    """The tag under which gloo carries a message, so that only its counterpart gets it: NCCL ignores the program's.

    Messages of different sizes never meet, and both ranks are seen to wait.
    """
    digest = hashlib.blake2b(f"{pair} {number} {size}".encode(), digest_size=4).digest()
    return NCCL_TAGS | int.from_bytes(digest, "little") % NCCL_TAGS


class PartyStore(Protocol):
    """What is asked of the store by which the ranks of a group find one another."""

    def set(self, key: str, value: str, /) -> None: ...

    def check(self, keys: list[str], /) -> bool: ...


class Party(NamedTuple):
    """Who makes a communicator: this rank and the others under their names in the store, and the call that it is."""

    store: PartyStore
    mine: str
    others: Sequence[str]
    channel: Channel


class CallWatch(Protocol):
    """What is asked of the watch over the ranks' calls."""

    def called(self, channel: Channel, operation: Operation, site: int, state: State, /) -> int: ...

    def waiting(self, entry: int, /) -> AbstractContextManager[None]: ...


class Joins:
    """The communicators that this rank has begun to make.

    NCCL keeps the host waiting in each until the last rank comes. Here a rank goes on until it begins the next one: a
    collective, which keeps the host waiting here alone, may have to come in between.
    """

    def __init__(self, watch: CallWatch) -> None:
        self._watch = watch
        self._begun: list[Communicator] = []

    def join(self, communicator: Communicator, party: Party | None, site: int) -> None:
        """Begin to make a communicator, at its first use; `party` is None where nobody else has to come."""
        again = bool(communicator.connected)  # on another GPU, which is one more communicator
        if communicator.joined and not again:
            return
        for begun in [*self._begun]:
            self.arrive(begun)
        communicator.joined = True
        if party is None:
            return
        party.store.set(party.mine, "")
        communicator.party = party
        communicator.entry = self._watch.called(party.channel, MAKING, site, State.DONE)
        if again:
            self.arrive(communicator)
        elif communicator.peer >= 0:
            self._begun.append(communicator)

    def arrive(self, communicator: Communicator) -> None:
        """Wait for every rank of a communicator."""
        party, communicator.party = communicator.party, None
        if communicator in self._begun:
            self._begun.remove(communicator)
        if party is None or party.store.check([*party.others]):
            return
        with self._watch.waiting(communicator.entry):
            while not party.store.check([*party.others]):
                sleep(PAUSE_S)
