"""What was alive, and by whom, from the allocators' history."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from windtunnel.trace.columns import columns
from windtunnel.trace.history import COMPLETED, History
from windtunnel.trace.holders import ModuleHolder, alive_at, by_module, words
from windtunnel.trace.operation import Site
from windtunnel.trace.trace import MEMORY_ACTIONS, Trace

SHOWN = 3


class Owner(NamedTuple):
    """Memory that one source line holds at one moment."""

    site: Site
    size_bytes: int


def owners(trace: Trace, device: int, until: str = "", site: Site | None = None) -> list[Owner]:
    """What was alive on a device, by allocating line, largest first.

    Args:
        trace: a trace whose allocation history was kept.
        device: whose memory.
        until: the moment: the first action of this name, or (empty) the peak of the allocated bytes.
        site: of that action; nothing was alive for all that is known where there is none of that line.
    """
    end = _moment(trace, device, until, site)
    history = History(trace)
    history.read(end)
    totals: Counter[Site] = Counter()
    for (where, _), taken in history.alive.items():
        if where == device:
            totals[trace.sites[taken.site]] += taken.size_bytes
    return [Owner(site, size) for site, size in totals.most_common()]


def _moment(trace: Trace, device: int, until: str, site: Site | None) -> int:
    """The number of the action at which to look; -1 where no action is of that line."""
    if until in MEMORY_ACTIONS:
        places = np.array([site is None or site[:2] == one[:2] for one in trace.sites])
        first = 0
        for found in columns(trace.memory):
            which = (found[0] == MEMORY_ACTIONS.index(until)) & (found[1] == device) & places[found[6]]
            if which.any():
                return first + int(which.argmax())
            first += found.shape[1]
    if site is not None:
        return -1
    total = peak = moment = last = 0
    for changes in History(trace).changes():
        own = changes.only(changes.device == device)
        if len(own):
            so_far = total + np.cumsum(own.change)
            highest, total, last = int(so_far.argmax()), int(so_far[-1]), int(own.row[-1])
            if so_far[highest] > peak:
                peak, moment = int(so_far[highest]), int(own.row[highest])
    return last if until else moment


def holders(trace: Trace, device: int, until: str = "", site: Site | None = None) -> list[ModuleHolder]:
    """What was alive on a device at the same moment, by module and category, largest first."""
    return list(by_module(alive_at(trace, device, _moment(trace, device, until, site), COMPLETED)))


def holders_words(held: list[ModuleHolder]) -> str:
    """The largest holders in one phrase, with a semicolon before it; empty when nothing is known."""
    named = [one for one in held if one.module or one.site.file]
    return f"; most of it held by {words(named, SHOWN)}" if named else ""
