"""The collectives of a group that a program's completion hook has not been told of (completion_hooks.py)."""

from __future__ import annotations

import importlib
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from understudy.ranks.watchdog import TYPES


class WorkInfo(NamedTuple):
    """What a hook is told of a collective: its kind, its number in the group, and when the device worked on it."""

    op_type: object
    seq: int
    time_started: datetime
    time_finished: datetime
    active_duration: timedelta


class Completions:
    """The hook of a group, and the collectives that it has not been told of."""

    def __init__(self, hook: Callable[[WorkInfo], object], now_ns: int) -> None:
        self.hook = hook
        self.begin_ns = time.time_ns() - now_ns
        self.pending: deque[tuple[str, int, int, int]] = deque()

    def add(self, name: str, number: int, began_ns: int, end_ns: int) -> None:
        """A collective was queued."""
        self.pending.append((name, number, began_ns, end_ns))

    def tell(self, now_ns: int) -> None:
        """Call the hook for what is done by now."""
        kinds: type = importlib.import_module("torch._C._distributed_c10d").OpType
        while self.pending and self.pending[0][3] <= now_ns:
            name, number, began_ns, end_ns = self.pending.popleft()
            started, finished = (datetime.fromtimestamp((self.begin_ns + ns) / 1e9) for ns in (began_ns, end_ns))
            kind = getattr(kinds, TYPES.get(name, "COALESCED"))
            self.hook(WorkInfo(kind, number, started, finished, timedelta(microseconds=(end_ns - began_ns) / 1e3)))
