"""What runs after all exit handlers of the program, each of which may use a GPU yet, even for the first time."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  cannot be imported by an exit handler, as PyTorch does, once threading is
from collections.abc import Callable
from functools import cache

_LAST: list[Callable[[], None]] = []


def at_last(function: Callable[[], None]) -> None:
    """Call `function` when the process ends, before those that were given earlier; Python may be ending already.

    Python calls first whoever registered last with it, so the first one is to be given before the program begins.
    """
    _register()
    _LAST.append(function)


@cache
def _register() -> None:
    atexit.register(run)


def run() -> None:
    """Call all of them, where the process ends now."""
    while _LAST:
        _LAST.pop()()
