"""The weights with which a job's replicas begin, compared: they must be the same, for only gradients are averaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from windtunnel.ranks.calls import listed
from windtunnel.trace.operation import Note, Site


class Weights(NamedTuple):
    """A checksum of each parameter that a rank holds a replica of, before the `number`-th optimizer's first step.

    `ranks` hold the same parameters, `site` is the line that made them replicas.
    """

    site: Site
    ranks: tuple[int, ...]
    number: int
    shapes: tuple[str, ...]
    checksums: tuple[int, ...]


def unequal(ranks: Mapping[int, Sequence[Weights]]) -> list[Note]:
    """Parameters that do not begin alike on the ranks that hold replicas of them, a note for each line."""
    groups: dict[tuple[tuple[int, ...], int, tuple[str, ...]], dict[int, Weights]] = {}
    for rank, several in sorted(ranks.items()):
        for weights in several:
            groups.setdefault((weights.ranks, weights.number, weights.shapes), {})[rank] = weights
    found: dict[Site, Note] = {}
    for given in groups.values():
        some = next(iter(given.values()))
        columns = list(zip(*(weights.checksums for weights in given.values()), strict=True))
        differing = [number for number, column in enumerate(columns) if len(set(column)) > 1]
        if differing and some.site not in found:
            found[some.site] = _note(given, differing, columns[differing[0]])
    return list(found.values())


def _note(given: Mapping[int, Weights], differing: Sequence[int], column: Sequence[int]) -> Note:
    some = next(iter(given.values()))
    (usual, _), *_ = Counter(column).most_common()
    others = [rank for rank, checksum in zip(given, column, strict=True) if checksum != usual]
    return Note(
        "unequal-replicas",
        some.site,
        (
            ("differing", len(differing)),
            ("parameters", len(some.checksums)),
            ("shape", some.shapes[differing[0]]),
            ("others", listed(others)),
            ("replicas", listed(some.ranks)),
        ),
    )
