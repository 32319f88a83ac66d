"""What stands round the verbs of a machine: turns, once several threads use them, and those who watch them.

What the machine knows is read, decided on and written in one verb: a stream's epoch, a vector clock, a free list. While
there is one thread no verb pays for a lock. From the second on each public method of the guarded objects holds the
machine's lock from beginning to end; it is reentrant, since verbs call each other. Whoever watches a verb (a profiler)
does so within the turn. Both come and go here alone, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from types import FrameType, FunctionType
from typing import TypeVar

Around = Callable[..., object]
"""Calls the verb that it is given, with the arguments that follow."""
T = TypeVar("T")


def waits(frame: FrameType) -> bool:
    """Whether a thread whose innermost frame this is waits for its turn."""
    return frame.f_globals is globals() and frame.f_code.co_name == "alone"


class Turns:
    """The lock of one machine, and the objects whose public methods take turns at it.

    `make_lock` makes a reentrant lock. Without it (a machine that no threads use) nothing is ever locked.
    """

    def __init__(self, make_lock: Callable[[], AbstractContextManager[object]] | None = None) -> None:
        self._make_lock = make_lock
        self.lock: AbstractContextManager[object] = nullcontext()
        self.shared = False
        self._guarded: list[object] = []
        self._watching: dict[tuple[int, str], list[Around]] = {}  # by a part's identity and a verb

    def guard(self, *parts: object) -> None:
        """Let the public methods of these objects take turns, from the moment at which there is a second thread."""
        if self.shared:
            for part in parts:
                self._wrap(part)
        else:
            self._guarded += parts

    def begin(self) -> None:
        """There is a second thread. Call it before that thread does anything."""
        if self.shared or self._make_lock is None:
            return
        self.lock = self._make_lock()
        self.shared = True
        while self._guarded:
            self._wrap(self._guarded.pop())

    def forked(self) -> None:
        """In a child process: what another thread of the parent held would stay held for ever."""
        if self.shared and self._make_lock is not None:
            self.lock = self._make_lock()

    def watch(self, part: object, names: Iterable[str], around: Around) -> None:
        """Let `around(verb, *args, **kwargs)` call these verbs of a guarded part from now on."""
        for name in names:
            self._watching.setdefault((id(part), name), []).append(around)
            self._dress(part, name)

    def unwatch(self, part: object, names: Iterable[str], around: Around) -> None:
        """End that; others who watch go on."""
        for name in names:
            key = id(part), name
            self._watching[key].remove(around)
            if not self._watching[key]:
                del self._watching[key]
            self._dress(part, name)

    def _wrap(self, part: object) -> None:
        for name in dir(type(part)):
            if not name.startswith("_") and isinstance(getattr(type(part), name), FunctionType):
                self._dress(part, name)

    def _dress(self, part: object, name: str) -> None:
        """Put round a verb what belongs there now."""
        verb: Callable[..., object] = getattr(type(part), name).__get__(part)
        watching = self._watching.get((id(part), name), ())
        for around in watching:
            verb = partial(around, verb)
        if self.shared:
            setattr(part, name, self._taking_turns(verb))
        elif watching:
            setattr(part, name, verb)
        else:
            delattr(part, name)

    def _taking_turns(self, verb: Callable[..., T]) -> Callable[..., T]:
        @wraps(verb)
        def alone(*args: object, **kwargs: object) -> T:
            with self.lock:
                return verb(*args, **kwargs)

        return alone
