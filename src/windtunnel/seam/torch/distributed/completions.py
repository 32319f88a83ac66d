"""The calls of a group that a program's completion hook has not been told of (completion_hooks.py)."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from windtunnel.ranks.watchdog import TYPES

MESSAGES = ("send", "recv")


class WorkInfo(NamedTuple):
    """What a hook is told of a call: its kind, its number in the group, and when the device worked on it."""

    op_type: object
    seq: int
    time_started: datetime
    time_finished: datetime
    active_duration: timedelta


@dataclass
class Completion:
    """A call, or all calls between `_start_coalescing` and `_end_coalescing`: done when each of its parts is.

    `number` is 0 until there is a call.
    """

    name: str
    number: int = 0
    parts: int = 0
    began_ns: int = -1
    end_ns: int = -1

    def ended(self, began_ns: int, end_ns: int) -> None:
        """When the device works on one of the parts is known."""
        self.parts -= 1
        self.began_ns = began_ns if self.began_ns < 0 else min(self.began_ns, began_ns)
        self.end_ns = max(self.end_ns, end_ns)


class Numbers:
    """The numbers of a group's calls: collectives and messages are counted apart, what is coalesced counts as one.

    Source: `seqCollective_` and `seqP2P_`, `startCoalescing` and `endCoalescing`
    (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
    """

    def __init__(self) -> None:
        self.collectives = 0
        self.messages = 0
        self.together: Completion | None = None

    def start(self) -> None:
        """What is called from now on is coalesced."""
        self.collectives += 1
        self.together = Completion("coalesced")

    def end(self) -> Completion | None:
        """No longer; None where nothing was called."""
        found, self.together = self.together, None
        return found if found is not None and found.number else None

    def next(self, name: str) -> Completion:
        """A call is made."""
        is_message, together = name in MESSAGES, self.together
        if is_message and (together is None or not together.number):
            self.messages += 1
        elif together is None:
            self.collectives += 1
        found = Completion(name) if together is None else together
        found.number = self.messages if is_message else self.collectives
        found.parts += 1
        return found


class Completions:
    """The hook of a group, and the calls that it has not been told of."""

    def __init__(self, hook: Callable[[WorkInfo], object], now_ns: int) -> None:
        self.hook = hook
        self.begin_ns = time.time_ns() - now_ns
        self.pending: list[Completion] = []

    def last_ns(self) -> int:
        """When the last of those is done whose end is known."""
        return max((one.end_ns for one in self.pending), default=0)

    def tell(self, now_ns: int) -> None:
        """Call the hook for what is done by now."""
        kinds: type = importlib.import_module("torch._C._distributed_c10d").OpType
        done = [one for one in self.pending if not one.parts and one.end_ns <= now_ns]
        self.pending = [one for one in self.pending if one.parts or one.end_ns > now_ns]
        for one in done:
            started, finished = (
                datetime.fromtimestamp((self.begin_ns + ns) / 1e9) for ns in (one.began_ns, one.end_ns)
            )
            kind = getattr(kinds, TYPES.get(one.name, "COALESCED"))
            active = timedelta(microseconds=(one.end_ns - one.began_ns) / 1e3)
            self.hook(WorkInfo(kind, one.number, started, finished, active))
