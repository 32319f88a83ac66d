"""Which ranks of a cluster are played by processes, and for which other ranks each of them stands.

Ranks are sorted into classes of ranks that do the same. Of each class the first member is played, and stands for the
others; further members are played to compare them with it. All classes are one at first: what the program does splits
them. A group within which ranks send messages is represented: each of its members gets a class, to which the ranks at
the same place in other groups of that shape belong. A rank that is alone stands for nobody else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise

from windtunnel.errors import UsageError

MOST_RANKS = 1 << 16
MOST_WHOLE = 16
"""A cluster of so many ranks is played whole where it is not clear which of them do the same."""
EVERY = -1
"""In place of a number of members to compare: all of them, so that each rank is played."""


@dataclass(frozen=True)
class Fold:
    """How `world` ranks, `per_node` on each node, are played.

    `checked` members of each class are played beside the first one. `alone` are ranks that stand for nobody else,
    `beside` further ranks that are played. Ranks are of one class where `r // stride % count` is the same for all pairs
    of `kinds` and `strides`; those of the latter are represented groups, which are played whole. Each of `cuts` begins
    other classes.
    """

    world: int
    per_node: int
    checked: int = 1
    alone: frozenset[int] = frozenset()
    beside: frozenset[int] = frozenset()
    kinds: frozenset[tuple[int, int]] = frozenset()
    strides: frozenset[tuple[int, int]] = frozenset()
    cuts: frozenset[int] = frozenset()

    def class_of(self, rank: int) -> tuple[int, ...]:
        """What tells the classes apart: equal for two ranks of one class."""
        places = (rank // stride % count for stride, count in sorted(self.kinds | self.strides))
        before = sum(cut <= rank for cut in self.cuts)
        return (rank if rank in self.alone else -1, before, *places)

    @cached_property
    def classes(self) -> list[list[int]]:
        """The ranks of each class in order, the classes by their first member."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world):
            found.setdefault(self.class_of(rank), []).append(rank)
        return list(found.values())

    @cached_property
    def first_of(self) -> list[int]:
        """By a rank's number: the first member of its class, which stands for it."""
        found = list(range(self.world))
        for members in self.classes:
            for rank in members:
                found[rank] = members[0]
        return found

    @cached_property
    def played(self) -> list[int]:
        """The ranks that have a process."""
        if self.checked == EVERY:
            return list(range(self.world))
        found = set(self.beside)
        for members in self.classes:
            last, parts = len(members) - 1, max(1, self.checked)
            found |= {members[0]} | {members[last * part // parts] for part in range(1, self.checked + 1)}
        for stride, count in self.strides:
            for rank in [*found]:
                first = rank - rank // stride % count * stride
                found |= {place for number in range(count) if (place := first + number * stride) < self.world}
        return sorted(found)

    @property
    def is_whole(self) -> bool:
        """Whether every rank is played."""
        return len(self.played) == self.world

    def present(self, ranks: Sequence[int]) -> list[int]:
        """The places in a group of those of its `ranks` that are played."""
        played = set(self.played)
        return [place for place, rank in enumerate(ranks) if rank in played]

    def gpus_of(self, rank: int, count: int) -> list[list[int]]:
        """For which GPUs of the cluster each of the `count` of a rank's node stands: itself, or those of a class."""
        first = rank // self.per_node * self.per_node
        if self.is_whole:
            return [[first + place] for place in range(count)]
        members = {one[0]: one for one in self.classes}
        return [members[self.first_of[number]] if number < self.world else [number]
                for number in range(first, first + count)]  # fmt: skip

    # ------------------------------------------------------------------ more classes

    def whole(self) -> Fold:
        """Every rank is played."""
        return replace(self, checked=EVERY)

    def with_group(self, ranks: Sequence[int]) -> Fold:
        """A group whose members send one another messages is represented."""
        steps = {after - before for before, after in pairwise(ranks)}
        stride = min(steps, default=1)
        if len(steps) <= 1 and stride > 0 and ranks[0] // stride % len(ranks) == 0:
            return replace(self, strides=self.strides | {(stride, len(ranks))})
        return replace(self, alone=self.alone | set(ranks))

    def with_alone(self, ranks: Iterable[int]) -> Fold:
        """Ranks that do what no other one does."""
        return replace(self, alone=self.alone | set(ranks))

    def with_beside(self, ranks: Iterable[int]) -> Fold:
        """Ranks that are played besides."""
        return replace(self, beside=self.beside | set(ranks))

    def with_cuts(self, ranks: Iterable[int]) -> Fold:
        """Ranks at which other classes begin."""
        return replace(self, cuts=self.cuts | set(ranks))

    def with_kind(self, stride: int, count: int) -> Fold:
        """Ranks that differ in `rank // stride % count` may do different things."""
        return replace(self, kinds=self.kinds | {(stride, count)})

    # ------------------------------------------------------------------ in words and as data

    def words(self) -> str:
        """Who stands for whom: "512 ranks by 2 processes: rank 0 stands for 0-511, checked with 511"."""
        if self.is_whole:
            return f"each of {self.world} ranks is played by a process of its own"
        played = set(self.played)
        parts = []
        for members in self.classes:
            others = [rank for rank in members[1:] if rank in played]
            compared = f", checked with {spans(others)}" if others else ", unchecked" if len(members) > 1 else ""
            parts.append(
                f"rank {members[0]} stands for {spans(members)}{compared}" if len(members) > 1 else f"rank {members[0]}"
            )
        processes = "1 process" if len(self.played) == 1 else f"{len(self.played)} processes"
        return f"{self.world} ranks by {processes}: " + "; ".join(parts)

    def to_json(self) -> str:
        """As one line, for a process's environment."""
        return json.dumps({name: sorted(value) if isinstance(value, frozenset) else value
                           for name, value in asdict(self).items()})  # fmt: skip

    @classmethod
    def from_json(cls, text: str) -> Fold:
        """The inverse of `to_json`."""
        found = json.loads(text)
        pairs = {name: frozenset(map(tuple, found[name])) for name in ("kinds", "strides")}
        return cls(**found | {name: frozenset(found[name]) for name in ("alone", "beside", "cuts")} | pairs)


@dataclass(frozen=True)
class Change:
    """What a played rank found that the fold must become, and why, as a clause of a sentence.

    `how` is the name of a method of `Fold` and `ranks` its argument.
    """

    how: str
    ranks: tuple[int, ...]
    why: str

    def apply(self, fold: Fold) -> Fold:
        """The fold with the change."""
        if self.how == "alone" and len(self.ranks) == fold.world:
            return fold.whole()  # whose ranks can still be compared
        changes: Mapping[str, Fold] = {
            "group": fold.with_group(self.ranks) if self.ranks else fold,
            "alone": fold.with_alone(self.ranks),
            "beside": fold.with_beside(self.ranks),
        }
        return changes[self.how]

    def to_json(self) -> str:
        """As one line, for a note."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Change:
        """The inverse of `to_json`."""
        found = json.loads(text)
        return cls(found["how"], tuple(found["ranks"]), found["why"])


def spans(ranks: Sequence[int]) -> str:
    """Numbers in order as a person writes them: "0-3, 8, 12-508 by 4"."""
    parts: list[str] = []
    at = 0
    while at < len(ranks):
        step = ranks[at + 1] - ranks[at] if at + 1 < len(ranks) else 1
        end = at
        while end + 1 < len(ranks) and ranks[end + 1] - ranks[end] == step:
            end += 1
        if end - at < (1 if step == 1 else 2):
            end = at
        by = f" by {step}" if step != 1 and end > at else ""
        parts.append(f"{ranks[at]}-{ranks[end]}{by}" if end > at else str(ranks[at]))
        at = end + 1
    return ", ".join(parts)


def parse(spec: str) -> tuple[int, int, str]:
    """The nodes of a cluster, the GPUs of each, and their model: "64x8xH100" are 64 nodes of 8.

    Raises:
        UsageError: that is no cluster.
    """
    nodes, _, rest = spec.partition("x")
    per_node, _, model = rest.partition("x")
    if not (nodes.isdecimal() and per_node.isdecimal() and model and int(nodes) and int(per_node)):
        raise UsageError(f"--cluster cannot be {spec!r}: give nodes, GPUs of a node and their model, as 64x8xH100")
    if int(nodes) * int(per_node) > MOST_RANKS:
        raise UsageError(f"--cluster {spec} has more than {MOST_RANKS:,} GPUs")
    return int(nodes), int(per_node), model
