"""Happens-before: which work on which stream is known to be complete, by whom.

Agents are the host (0) and every stream (1, 2, ...). Each piece of work on a stream has an epoch, a number that grows
by one; a vector clock maps an agent to the latest epoch that its owner is ordered after. Events copy their stream's
clock, waits and synchronizations join it. Host threads are one agent: what orders one of them is not told apart.
"""

from __future__ import annotations

from windtunnel.machine.overlap import Strided, overlap

VectorClock = dict[int, int]

HOST = 0

ANYWHERE = 1 << 62
"""The end of a range in memory whose size does not matter."""

ROOM = 64
"""How many accesses to a storage are kept before any is looked at again."""


def join(clock: VectorClock, *others: VectorClock) -> None:
    """Make `clock` know all that the others know."""
    for other in others:
        for agent, epoch in other.items():
            if clock.get(agent, 0) < epoch:
                clock[agent] = epoch


def knows(clock: VectorClock, agent: int, epoch: int) -> bool:
    """Whether the owner of `clock` is ordered after that epoch of that agent."""
    return clock.get(agent, 0) >= epoch


class Access:
    """One read or write of a byte range [start, end) by an agent, at an epoch, from a line of the program.

    `freed`: the memory was given back since, so that a conflict means reuse. `strided`: which bytes of the range, where
    not all.
    """

    __slots__ = ("agent", "end", "epoch", "freed", "lane", "site", "start", "strided", "write")

    def __init__(
        self,
        agent: int,
        epoch: int,
        start: int,
        end: int,
        write: bool,
        lane: int,
        site: int,
        strided: Strided | None = None,
    ) -> None:
        self.agent = agent
        self.epoch = epoch
        self.start = start
        self.end = end
        self.write = write
        self.lane = lane
        self.site = site
        self.freed = False
        self.strided = strided


class Accesses:
    """The accesses to one storage that later ones must be ordered after: the last writes and the reads since.

    `base` is the address that their ranges count from, once the storage's memory was given back.
    """

    __slots__ = ("base", "reads", "room", "writes")

    def __init__(self) -> None:
        self.base = 0
        self.writes: list[Access] = []
        self.reads: list[Access] = []
        self.room = ROOM

    def conflict(self, access: Access, clock: VectorClock) -> Access | None:
        """The first earlier access that overlaps `access`, conflicts with it and is not ordered before `clock`.

        One to what lies there now comes before one to what was freed there: whoever waits for it waits for both.
        """
        agent = access.agent
        reused: Access | None = None
        for others in (self.writes, self.reads) if access.write else (self.writes,):
            for other in others:
                if other.agent != agent and _unordered(other, access, clock):
                    if not other.freed:
                        return other
                    reused = reused or other
        return reused

    def add(self, access: Access) -> None:
        """Remember `access`; a write replaces what it covers, a read replaces the same agent's earlier one."""
        if access.strided is None:
            agent, start, end = access.agent, access.start, access.end
            if access.write:
                self.writes = [w for w in self.writes if w.start < start or w.end > end]
                if self.reads:
                    self.reads = [r for r in self.reads if r.start < start or r.end > end]
                self.writes.append(access)
            else:
                self.reads = [r for r in self.reads if r.agent != agent or r.start < start or r.end > end]
                self.reads.append(access)
        elif access.write:
            self.writes = [w for w in self.writes if w.strided != access.strided]
            self.reads = [r for r in self.reads if r.strided != access.strided]
            self.writes.append(access)
        else:
            self.reads = [r for r in self.reads if not (r.agent == access.agent and r.strided == access.strided)]
            self.reads.append(access)

    def forget(self, clock: VectorClock) -> None:
        """Where there are many, forget those that the host's clock knows: all later work is ordered after them.

        A loop that reads a tensor element by element, and waits for each, would otherwise look through all of them.
        """
        if len(self.writes) + len(self.reads) > self.room:
            self.complete(clock)
            self.room = max(ROOM, 2 * (len(self.writes) + len(self.reads)))

    def complete(self, clock: VectorClock) -> None:
        """All that `clock` knows has ended: nothing needs to be ordered after it."""
        self.writes = [a for a in self.writes if not knows(clock, a.agent, a.epoch)]
        self.reads = [a for a in self.reads if not knows(clock, a.agent, a.epoch)]

    def unordered(self, clock: VectorClock) -> list[Access]:
        """The accesses that `clock` does not know to be complete."""
        known = clock.get
        return [a for a in (*self.writes, *self.reads) if known(a.agent, 0) < a.epoch]


def freed(before: Accesses, address: int, size: int) -> Accesses:
    """The accesses to memory that was given back, as the writer of its next owner meets them, which has some of it."""
    made = Accesses()
    for access in (*before.writes, *before.reads):
        start, end = access.start + before.base - address, access.end + before.base - address
        if start < size and end > 0:
            kept = Access(
                access.agent, access.epoch, max(start, 0), min(end, size), access.write, access.lane, access.site
            )
            kept.freed = True
            made.writes.append(kept)
    return made


def awaited(before: object, clock: VectorClock) -> object:
    """Those accesses to a block that `clock` does not know to be complete; None where there are none."""
    if not isinstance(before, Accesses):
        return before
    made = Accesses()
    made.base = before.base
    made.writes = [a for a in before.writes if not knows(clock, a.agent, a.epoch)]
    made.reads = [a for a in before.reads if not knows(clock, a.agent, a.epoch)]
    return made if made.writes or made.reads else None


def merged(clock: VectorClock, one: object, other: object) -> object:
    """The accesses of two free blocks that became one: one of the two objects where it says all, which is often.

    Pieces of memory that are split and joined over and over would otherwise copy the same accesses each time. What
    `clock`, the host's, knows as a whole is left out, since all that is to come is ordered after it.
    """
    one, other = _unless_known(clock, one), _unless_known(clock, other)
    if not (isinstance(one, Accesses) and isinstance(other, Accesses)):
        return one or other
    for kept, added in ((one, other), (other, one)):
        parts = ((kept.writes, added.writes), (kept.reads, added.reads))
        if not kept.base and all(_holds(part, beside, added.base) for part, beside in parts):
            return kept
    made = Accesses()
    made.writes = _merged(one.base, one.writes, other.base, other.writes)
    made.reads = _merged(one.base, one.reads, other.base, other.reads)
    return made


def _unless_known(clock: VectorClock, before: object) -> object:
    """These accesses, or None where `clock` knows them all."""
    return None if isinstance(before, Accesses) and not before.unordered(clock) else before


def _holds(kept: list[Access], added: list[Access], base: int) -> bool:
    """Whether a block's accesses, counted from address 0, have those of another one at `base`, at least as late."""
    if not added:
        return True
    if len(kept) < len(added) or len(kept) + len(added) > ROOM:
        return False
    latest = {(a.agent, a.start, a.end): a.epoch for a in kept if a.strided is None and not a.freed}
    return len(latest) == len(kept) and all(
        latest.get((a.agent, a.start + base, a.end + base), -1) >= a.epoch for a in added
    )


def _merged(base: int, one: list[Access], other_base: int, other: list[Access]) -> list[Access]:
    """The accesses of two blocks by address; of each agent only the last one, on all its bytes, where they are many."""
    found: dict[tuple[int, int, int], Access] = {}
    many = len(one) + len(other) > ROOM
    for at, accesses in ((base, one), (other_base, other)):
        for access in accesses:
            start, end = access.start + at, access.end + at
            key = (access.agent, 0, 0) if many else (access.agent, start, end)
            known = found.get(key)
            if known is None and not (at or access.freed or access.strided):
                found[key] = access
                continue
            last = access if known is None or known.epoch < access.epoch else known
            if known is not None:
                start, end = min(start, known.start), max(end, known.end)
            found[key] = Access(last.agent, last.epoch, start, end, last.write, last.lane, last.site)
    return list(found.values())


def _meet(one: Access, other: Access) -> bool:
    if one.strided is None and other.strided is None:
        return True
    return overlap(
        one.strided or Strided(one.start, one.end - one.start),
        other.strided or Strided(other.start, other.end - other.start),
    )


def _unordered(old: Access, new: Access, clock: VectorClock) -> bool:
    """Whether accesses of two agents meet, and nothing orders them."""
    return old.start < new.end and new.start < old.end and not knows(clock, old.agent, old.epoch) and _meet(old, new)
