"""What was alive, and by whom, from the allocators' history."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from windtunnel.trace.holders import COMPLETED, ModuleHolder, alive_at, by_module, words
from windtunnel.trace.operation import Site
from windtunnel.trace.trace import Trace

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
    alive: dict[int, Owner] = {}
    for number, action in enumerate(trace.memory_actions()):
        if number > end:
            break
        if action.device != device:
            continue
        if action.action == "alloc":
            alive[action.address] = Owner(action.site, action.size_bytes + action.excess_bytes)
        elif action.action == "free_completed":
            alive.pop(action.address, None)
    totals: Counter[Site] = Counter()
    for owner in alive.values():
        totals[owner.site] += owner.size_bytes
    return [Owner(site, size) for site, size in totals.most_common()]


def _moment(trace: Trace, device: int, until: str, site: Site | None) -> int:
    """The number of the action at which to look; -1 where no action is of that line."""
    alive: dict[int, int] = {}
    total = peak = moment = 0
    for number, action in enumerate(trace.memory_actions()):
        if action.device != device:
            continue
        if action.action == until and (site is None or site[:2] == action.site[:2]):
            return number
        if action.action == "alloc":
            alive[action.address] = action.size_bytes + action.excess_bytes
            total += alive[action.address]
        elif action.action == "free_completed":
            total -= alive.pop(action.address, 0)
        if until or total > peak:
            peak, moment = total, number
    return moment if site is None else -1


def holders(trace: Trace, device: int, until: str = "", site: Site | None = None) -> list[ModuleHolder]:
    """What was alive on a device at the same moment, by module and category, largest first."""
    return list(by_module(alive_at(trace, device, _moment(trace, device, until, site), COMPLETED)))


def holders_words(held: list[ModuleHolder]) -> str:
    """The largest holders in one phrase, with a semicolon before it; empty when nothing is known."""
    named = [one for one in held if one.module or one.site.file]
    return f"; most of it held by {words(named, SHOWN)}" if named else ""
