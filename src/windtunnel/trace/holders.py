"""What is allocated on a device at one moment of its history, and which modules hold it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from windtunnel.trace.history import FREE, History
from windtunnel.trace.operation import UNKNOWN_SITE, Role, Site
from windtunnel.trace.trace import MEMORY_CATEGORIES, Held, Trace
from windtunnel.trace.units import format_bytes

OTHER = "other"
WORDS = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer": "optimizer states",
    "activation": "activations",
    "temporary": "temporary",
    "workspace": "cuBLAS workspace",
    "input": "inputs",
    "autocast": "autocast's copies of weights",
    "retained": "kept after their backward pass",
    "communication": "communication",
}
"""Categories, as they are written."""

LAYER = re.compile(r"^([^.]+\..*?[^.\d]\.)(\d+)(?=\.|$)")
"""A layer's number in a module's path: layers that differ in nothing else are one row. Those of a model that is a row
of layers itself ("Sequential.0") are told apart."""

Value = TypeVar("Value", bound=Hashable)


class Alive(NamedTuple):
    """An allocation that is alive at a moment."""

    site: Site
    category: str
    role: Role
    size_bytes: int


@dataclass(frozen=True)
class ModuleHolder:
    """The blocks of one module, or of a row of equal layers ("GPT.h.*.mlp"), of one category.

    `operator` made most of them, `tensor` is the parameter or state that most of it is, `site` the line that asked for
    most, and `modules` the number of modules. What belongs to no module has no path, but its line.
    """

    module: str
    category: str
    operator: str
    tensor: str
    site: Site
    modules: int
    blocks: int
    size_bytes: int

    @property
    def what(self) -> str:
        """What it is, in a few words: "activations of aten::gelu", "parameters", "DDP's bucket of gradients"."""
        found = WORDS.get(self.category, self.category)
        if self.category == "communication":
            return self.tensor or found
        if self.category == "retained":
            return f"results of {self.operator} {found}"
        if self.category == OTHER:
            return f"made by {self.operator}" if self.operator else ""
        return found if self.category in NAMED_ALONE or not self.operator else f"{found} of {self.operator}"


NAMED_ALONE = frozenset({"parameter", "gradient", "optimizer", "autocast", "input", "workspace"})
"""Categories of which the operator that made them says nothing."""


def alive_at(trace: Trace, device: int, last: int, freed: int = FREE) -> list[Alive]:
    """What is allocated on a device after the row `last` of the history, in the order in which it was taken.

    `freed` is the action that ends an allocation.
    """
    history = History(trace, freed)
    history.read(last)
    found = []
    for (where, _), taken in history.alive.items():
        if where == device:
            held = Held.of(taken.packed)
            category = MEMORY_CATEGORIES[held.category] or OTHER
            found.append(Alive(trace.sites[taken.site], category, trace.roles[held.role], taken.size_bytes))
    return found


def by_module(alive: Iterable[Alive]) -> Iterator[ModuleHolder]:
    """What modules hold, those with most first; what is outside of all modules is told apart by its line."""
    groups: dict[tuple[str, str, Site], list[Alive]] = {}
    for one in alive:
        module = LAYER.sub(r"\1*", one.role.module)
        place = UNKNOWN_SITE if module else one.site._replace(function="", stack=())
        groups.setdefault((module, one.category, place), []).append(one)
    sizes = {key: sum(one.size_bytes for one in group) for key, group in groups.items()}
    for key in sorted(groups, key=lambda key: (-sizes[key], key)):
        group = groups[key]
        yield ModuleHolder(
            key[0],
            key[1],
            _most((one.role.operator, one.size_bytes) for one in group),
            _most((one.role.tensor, one.size_bytes) for one in group),
            _most((one.site, one.size_bytes) for one in group),
            len({one.role.module for one in group}),
            len(group),
            sizes[key],
        )


def words(held: Iterable[ModuleHolder], most: int, line: Callable[[Site], str] = str) -> str:
    """Those that hold most in one phrase: "GPT.head (12.3 GiB, activations of aten::mm)". `line` writes a site."""
    shown = []
    for one in list(held)[:most]:
        what = f", {one.what}" if one.what else ""
        shown.append(f"{one.module or line(one.site)} ({format_bytes(one.size_bytes)}{what})")
    return ", ".join(shown)


def _most(weighted: Iterable[tuple[Value, int]]) -> Value:
    """Of several values the one with most weight."""
    weights: Counter[Value] = Counter()
    for value, weight in weighted:
        weights[value] += weight
    return weights.most_common(1)[0][0]
