"""The clocks of an extension's host code: what Python's functions of the same name give a program."""

from __future__ import annotations

import time
from collections.abc import Callable

SECOND_NS = 1_000_000_000


def time_of_day() -> int:
    """Nanoseconds of `time.time()`."""
    return time.time_ns()


def monotonic() -> int:
    """Nanoseconds of `time.monotonic()`."""
    return time.monotonic_ns()


def passed(left_ns: int) -> int:
    """A wait has lasted so long by this machine's clock: the modelled one follows."""
    time.sleep(max(left_ns, 0) / SECOND_NS)
    return 0


CALLS: dict[str, Callable[..., int]] = {"time": time_of_day, "monotonic": monotonic, "passed": passed}
