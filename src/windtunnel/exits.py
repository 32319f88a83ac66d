"""What runs after all exit handlers of the program, each of which may use a GPU yet, even for the first time."""

from __future__ import annotations

import atexit
from collections.abc import Callable

_LAST: list[Callable[[], None]] = []
_BEGUN: list[bool] = []


def begin() -> None:
    """Register with Python, which calls first whoever registered last: to be called before the program begins."""
    if not _BEGUN:
        _BEGUN.append(True)
        atexit.register(_run)


def at_last(function: Callable[[], None]) -> None:
    """Call `function` when the process ends, before those that were given earlier; Python may be ending already."""
    begin()
    _LAST.append(function)


def _run() -> None:
    while _LAST:
        _LAST.pop()()
