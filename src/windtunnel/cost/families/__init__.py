"""Kernel families, a file each: the listing of this folder is the registry.

A family's file names the operator classes that it prices in `CLASSES` and has `price(problem) -> Price | None`, where
None leaves the kernel to the efficiency curves.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module

from windtunnel.cost.families.problem import Price, Problem

Family = Callable[[Problem], Price | None]


@cache
def by_class() -> dict[str, tuple[Family, ...]]:
    """The functions that price each operator class which has families; at most one of them answers."""
    found: dict[str, tuple[Family, ...]] = {}
    for module in pkgutil.iter_modules(__path__):
        family = import_module(f"{__name__}.{module.name}")
        for name in getattr(family, "CLASSES", ()):
            found[name] = (*found.get(name, ()), family.price)
    return found
