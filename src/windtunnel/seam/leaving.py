"""The ways in which a process ends, or becomes another program, past Python's own ending: records are saved first."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NoReturn

from windtunnel.seam.patching import Patch

LEAVING = ("_exit", "abort", "execv", "execve")
"""Functions of `os` that do not return. The other forms of `exec` call the last two."""


def patches(save: Callable[[], None]) -> list[Patch]:
    """The functions that do not come back, each with `save()` before it."""
    return [Patch(os, name, _saving(getattr(os, name), save)) for name in LEAVING]


def _saving(stock: Callable[..., NoReturn], save: Callable[[], None]) -> Callable[..., object]:
    def leave(*args: object, **kwargs: object) -> object:
        save()
        return stock(*args, **kwargs)

    leave.__name__, leave.__qualname__, leave.__doc__ = stock.__name__, stock.__qualname__, stock.__doc__
    return leave
