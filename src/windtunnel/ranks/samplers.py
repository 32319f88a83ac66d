"""The epochs of a job's samplers, compared: each rank must get a part of its own of one and the same order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from windtunnel.ranks.calls import listed
from windtunnel.trace.operation import Note, Site

SHUFFLED = ("seed", "epoch")
"""What decides the order where the examples are shuffled."""


class Epoch(NamedTuple):
    """A rank's `number`-th pass over a DistributedSampler at a line, and what the sampler was told."""

    site: Site
    number: int
    size: int
    replicas: int
    rank: int
    seed: int
    epoch: int
    shuffle: bool


def disagreeing(ranks: Mapping[int, Sequence[Epoch]]) -> list[Note]:
    """The first epoch of each line in which the samplers of the ranks do not fit together."""
    passes: dict[tuple[Site, int, int], dict[int, Epoch]] = {}
    users: dict[Site, set[int]] = {}
    for rank, epochs in sorted(ranks.items()):
        for epoch in epochs:
            passes.setdefault((epoch.site, epoch.number, epoch.size), {})[rank] = epoch
            users.setdefault(epoch.site, set()).add(rank)
    found: dict[Site, Note] = {}
    for (site, number, _), given in sorted(passes.items()):
        if site in found or len(given) < 2 or given.keys() != users[site]:  # a rank has ended before it
            continue
        what = _difference(given)
        if what:
            found[site] = Note("samplers-disagree", site, (("what", what), ("number", number), *_shown(given, what)))
    return list(found.values())


def _difference(given: Mapping[int, Epoch]) -> str:
    """In what the samplers of one epoch do not fit together; "" where they do."""
    some = next(iter(given.values()))
    told = ("replicas", "shuffle", *(SHUFFLED if some.shuffle else ()))
    differing: str = next((what for what in told if len({getattr(one, what) for one in given.values()}) > 1), "")
    if differing:
        return differing
    parts = Counter(epoch.rank for epoch in given.values())  # of ranks that share a model, some read the same part
    return "" if len(parts) == some.replicas and len(set(parts.values())) == 1 else "rank"


def _shown(given: Mapping[int, Epoch], what: str) -> list[tuple[str, str]]:
    """What the ranks gave, ranks with the same together."""
    by_value: dict[object, list[int]] = {}
    for rank, epoch in given.items():
        by_value.setdefault(getattr(epoch, what), []).append(rank)
    some = next(iter(given.values()))
    of = f" of {some.replicas}" if what == "rank" else ""
    return [(listed(ranks), f"{what}={value}{of}") for value, ranks in by_value.items()]
