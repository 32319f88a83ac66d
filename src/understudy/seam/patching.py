"""Replacing names in other packages, and putting them back by identity."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any, NamedTuple

_ABSENT = object()
IMMUTABLE = 1 << 8
"""`Py_TPFLAGS_IMMUTABLETYPE`: a class written in C, whose attributes Python code does not set."""


class Patch(NamedTuple):
    """One name to replace: `setattr(owner, name, value)`; `owner` is a module or a class."""

    owner: Any
    name: str
    value: Any


class Patches:
    """The names that are replaced at the moment, with what stood there before."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def apply(self, patches: Iterable[Patch]) -> None:
        """Replace every name; what is replaced already stays restorable to its first value."""
        for owner, name, value in patches:
            self._undo.append((owner, name, _found(owner, name)))
            _put(owner, name, value)

    def restore(self) -> None:
        """Put everything back, last replaced first; names that did not exist are removed."""
        while self._undo:
            owner, name, before = self._undo.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                _put(owner, name, before)

    def __iter__(self) -> Iterator[tuple[Any, str, Any]]:
        """What is replaced: (owner, name, what stood there)."""
        return iter(self._undo)


def _found(owner: Any, name: str) -> Any:
    # A function's defaults are an attribute that its __dict__ does not hold.
    if isinstance(owner, FunctionType):
        return getattr(owner, name)
    return vars(owner).get(name, _ABSENT)


def _put(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, type) and owner.__flags__ & IMMUTABLE:
        names: Any = gc.get_referents(vars(owner))[0]
        names[name] = value
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))  # forgets what was looked up in it
    else:
        setattr(owner, name, value)
