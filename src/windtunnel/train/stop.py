"""Asking a training to stop: SIGTERM and SIGUSR1 (preemption) set a flag that the loop reads between steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))


class Preempted(Exception):  # noqa: N818  (it ends the loop; nobody is told of an error)
    """A signal asked the training to stop."""


class StopRequest:
    """`with StopRequest() as stop`: `stop.signal` is the number of the signal received, otherwise 0.

    Python delivers signals to the main thread only; in other threads nothing is installed. The previous handlers are
    restored at the end.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._former: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.signal = number

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._ask) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
