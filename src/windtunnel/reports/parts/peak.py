"""What held a device's memory when most was allocated: by category, by module, and by the program's lines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from windtunnel.trace.history import FREE, History
from windtunnel.trace.holders import Alive, ModuleHolder, alive_at, by_module
from windtunnel.trace.operation import Site
from windtunnel.trace.trace import Trace

MAX_LINES = 10
MAX_MODULES = 20


@dataclass(frozen=True)
class Holder:
    """The blocks that one source line had taken, of one category."""

    site: Site
    category: str
    blocks: int
    size_bytes: int


@dataclass
class Peak:
    """A device's memory at its peak, as far as the history was kept. Bytes are those of whole blocks.

    `allocated_bytes` is the sum of `categories`; where the history began late it is less than the device's peak.
    `holders` are the lines with most, largest first; `other_bytes` is what lines beyond them hold, and `unnamed_bytes`
    what no line is known for. `modules` are the modules with most, and `has_modules` whether any module is known.
    """

    device: int
    time_ns: int = 0
    allocated_bytes: int = 0
    categories: dict[str, int] = field(default_factory=dict)
    holders: list[Holder] = field(default_factory=list)
    other_bytes: int = 0
    unnamed_bytes: int = 0
    modules: list[ModuleHolder] = field(default_factory=list)

    @property
    def has_modules(self) -> bool:
        """Whether anything is known to be of a module."""
        return any(one.module for one in self.modules)


def peaks(trace: Trace) -> dict[int, Peak]:
    """The peak of each device that the history speaks of."""
    found: dict[int, tuple[int, int, int]] = {}  # device -> bytes, row, time
    totals: Counter[int] = Counter()
    for changes in History(trace, FREE).changes():
        for device, own in changes.of_devices():
            so_far = totals[device] + np.cumsum(own.change)
            highest = int(so_far.argmax())
            if so_far[highest] > found.get(device, (0, 0, 0))[0]:
                found[device] = int(so_far[highest]), int(own.row[highest]), int(own.time_ns[highest])
            totals[device] = int(so_far[-1])
    return {
        device: _peak(device, time_ns, alive_at(trace, device, row))
        for device, (_, row, time_ns) in sorted(found.items())
    }


def _peak(device: int, time_ns: int, alive: list[Alive]) -> Peak:
    categories: Counter[str] = Counter()
    lines: dict[tuple[str, int, str], list[int]] = {}
    sites: dict[tuple[str, int, str], Site] = {}
    for one in alive:
        categories[one.category] += one.size_bytes
        key = one.site.file, one.site.line, one.category
        sites.setdefault(key, one.site)
        line = lines.setdefault(key, [0, 0])
        line[0] += 1
        line[1] += one.size_bytes
    ranked = sorted(lines.items(), key=lambda item: (-item[1][1], item[0]))
    holders = [Holder(sites[key], key[2], blocks, size) for key, (blocks, size) in ranked[:MAX_LINES]]
    total = sum(categories.values())
    return Peak(
        device,
        time_ns,
        total,
        dict(sorted(categories.items(), key=lambda item: (-item[1], item[0]))),
        holders,
        total - sum(holder.size_bytes for holder in holders),
        sum(size for key, (_, size) in lines.items() if not key[0]),
        list(by_module(alive))[:MAX_MODULES],
    )
