"""What the files of the seam register, found by listing its rooms: a new file is all that a new entry needs.

A file registers an entry under a name that all agree on: `patches` (names of PyTorch that it replaces), `MODULES` (the
same in modules that the program may import later), `modules` (those, where they depend on the emulation), and the
tables of `kernels`. Two files with an entry for one key are an error, so the order in which they are found has no
meaning.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import TypeVar

from windtunnel.errors import InternalError

Key = TypeVar("Key")
Value = TypeVar("Value")
ROOT = __name__.rpartition(".")[0]


@cache
def modules(*rooms: str) -> tuple[ModuleType, ...]:
    """The files of these rooms, imported, in the rooms' order and then by name."""
    found = []
    for room in rooms:
        package = importlib.import_module(f"{ROOT}.{room}")
        names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
        found += [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    return tuple(found)


def registering(name: str, *rooms: str) -> list[ModuleType]:
    """The files of these rooms that register something under `name` themselves."""
    return [module for module in modules(*rooms) if name in vars(module)]


def merged(name: str, tables: Iterable[tuple[str, Mapping[Key, Value]]]) -> dict[Key, Value]:
    """The tables called `name`, each with the file that it is from, as one.

    Raises:
        InternalError: two of them have an entry for one key.
    """
    found: dict[Key, Value] = {}
    owners: dict[Key, str] = {}
    for file, table in tables:
        for key, value in table.items():
            if key in found:
                raise InternalError(f"{name}: both {owners[key]} and {file} have an entry for {key}")
            found[key], owners[key] = value, file
    return found
