"""Replacing names in other packages, and putting them back by identity."""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, FunctionType, ModuleType
from typing import NamedTuple, TypeVar

from windtunnel.seam.signatures import fitted

Key = TypeVar("Key")
_ABSENT = object()
IMMUTABLE = 1 << 8
"""`Py_TPFLAGS_IMMUTABLETYPE`: a class written in C, whose attributes Python code does not set."""


SILENT = frozenset({"mpmath", "numpy", "pynvml", "sympy"})
"""Packages of many names that take neither a clock nor a constructor from elsewhere."""

_PASSED: dict[frozenset[str], set[str]] = {}
"""By what is kept, the modules that `imported` passes over: every session of a process asks for the same."""


class Patch(NamedTuple):
    """One name to replace: `setattr(owner, name, value)`; `owner` is a module or a class."""

    owner: object
    name: str
    value: object


def imported(replaced: Mapping[int, object], kept: Collection[str]) -> Iterator[Patch]:
    """Names that modules took before the emulation (`from torch import zeros`), those of `kept` and `SILENT` apart.

    `replaced` has what stands in a function's place, by the function's identity.
    """
    passed = _PASSED.setdefault(frozenset(kept), set())
    for place in [name for name in sys.modules if name not in passed]:
        package = place.partition(".")[0]
        if package in kept or package in SILENT:
            passed.add(place)
            continue
        module = sys.modules.get(place)
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict) or replaced.keys().isdisjoint(map(id, names.values())):
            continue
        for name, value in list(names.items()):
            if id(value) in replaced:
                yield Patch(module, name, replaced[id(value)])


class Patches:
    """The names that are replaced at the moment, with what stood there before."""

    def __init__(self) -> None:
        self._undo: list[tuple[object, str, object]] = []
        self._made: dict[int, Patch] = {}

    def apply(self, patches: Iterable[Patch]) -> None:
        """Replace every name; what is replaced already stays restorable to its first value."""
        note, made = self._undo.append, self._made
        for patch in patches:
            owner, name, value = patch
            # A function's defaults are an attribute that its __dict__ does not hold.
            before = getattr(owner, name) if type(owner) is FunctionType else vars(owner).get(name, _ABSENT)
            known = fitted(value, before)
            note((owner, name, before))
            if callable(known) or hasattr(known, "__get__"):
                made.setdefault(id(known), patch if known is value else Patch(owner, name, known))
            _put(owner, name, known)

    def restore(self) -> None:
        """Put everything back, last replaced first; names that did not exist are removed."""
        while self._undo:
            owner, name, before = self._undo[-1]
            if before is not _ABSENT:
                _put(owner, name, before)
            elif name in vars(owner):
                delattr(owner, name)
            self._undo.pop()

    def forget(self, modules: Collection[str]) -> None:
        """Take the replacements out of modules that were imported meanwhile and took them by `from ... import`.

        To be called after `restore`, with the modules' names. They get what stands at the name now, or a function that
        looks there when called.
        """
        for module in map(sys.modules.get, modules):
            if not isinstance(module, ModuleType) or module.__name__.startswith("windtunnel."):
                continue
            # By `type`, since `isinstance` wakes the lazy modules that PyTorch's hold.
            found = [value for value in vars(module).values() if issubclass(type(value), type)]
            for owner in (module, *(one for one in found if one.__module__ == module.__name__)):
                for name, now in self._taken(vars(owner)):
                    setattr(owner, name, now)
            for table in [value for value in vars(module).values() if type(value) is dict]:
                table |= dict(self._taken(table))
                for key, now in self._taken({key: key for key in table}):
                    table[now] = table.pop(key)
        self._made.clear()

    def _taken(self, names: Mapping[Key, object]) -> list[tuple[Key, object]]:
        """The names that hold a replacement of ours, each with what it gets instead."""
        found = []
        for name, value in names.items():
            inner = value.__func__ if type(value) is staticmethod else value
            patch = self._made.get(id(value)) or self._made.get(id(inner))
            if patch is not None:
                now = getattr(patch.owner, patch.name, None) or _looking(patch.owner, patch.name)
                found.append((name, now if inner is value else staticmethod(now)))
        return found

    def __iter__(self) -> Iterator[tuple[object, str, object]]:
        """What is replaced: (owner, name, what stood there)."""
        return iter(self._undo)


def _put(owner: object, name: str, value: object) -> None:
    if isinstance(owner, type) and owner.__flags__ & IMMUTABLE:
        names = gc.get_referents(vars(owner))[0]
        names[name] = value
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))  # forgets what was looked up in it
    else:
        setattr(owner, name, value)


def _looking(owner: object, name: str) -> Callable[..., object]:
    def look(*args: object, **kwargs: object) -> object:
        return getattr(owner, name)(*args, **kwargs)

    look.__name__ = name
    return look


@contextmanager
def undone(undo: Callable[[], None]) -> Iterator[None]:
    """Call `undo` should what is inside fail."""
    try:
        yield
    except BaseException:
        undo()
        raise


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait until what is inside is done: half of a replacement is none."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: waiting.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if waiting:
            handler(*waiting[0])
