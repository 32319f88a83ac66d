"""What held a device's memory at the moment when most was allocated: by category, and by the program's lines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from windtunnel.trace.operation import Site
from windtunnel.trace.trace import MEMORY_ACTIONS, MEMORY_CATEGORIES, MEMORY_EXCESS, Trace

MAX_LINES = 10
ALLOC, FREE = MEMORY_ACTIONS.index("alloc"), MEMORY_ACTIONS.index("free_requested")
OTHER = "other"


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
    what no line is known for.
    """

    device: int
    time_ns: int = 0
    allocated_bytes: int = 0
    categories: dict[str, int] = field(default_factory=dict)
    holders: list[Holder] = field(default_factory=list)
    other_bytes: int = 0
    unnamed_bytes: int = 0


def peaks(trace: Trace) -> dict[int, Peak]:
    """The peak of each device that the history speaks of."""
    found: dict[int, tuple[int, int]] = {}  # device -> bytes, row
    totals: Counter[int] = Counter()
    alive: dict[tuple[int, int], int] = {}
    for number, (action, device, _, address, size, _, _, packed) in enumerate(trace.memory):
        if action == ALLOC:
            size += packed >> MEMORY_EXCESS
            alive[device, address] = size
            totals[device] += size
            if totals[device] > found.get(device, (0, 0))[0]:
                found[device] = totals[device], number
        elif action == FREE:
            totals[device] -= alive.pop((device, address), 0)
    return {device: _peak(trace, device, row) for device, (_, row) in sorted(found.items())}


def _peak(trace: Trace, device: int, last: int) -> Peak:
    alive: dict[int, tuple[int, int, int]] = {}
    time_ns = 0
    for number, (action, where, _, address, size, time, site, packed) in enumerate(trace.memory):
        if number > last:
            break
        if where != device:
            continue
        if action == ALLOC:
            alive[address] = site, packed & 255, size + (packed >> MEMORY_EXCESS)
            time_ns = time
        elif action == FREE:
            alive.pop(address, None)
    categories: Counter[str] = Counter()
    lines: dict[tuple[str, int, str], list[int]] = {}
    sites: dict[tuple[str, int, str], Site] = {}
    for number, code, size in alive.values():
        category = MEMORY_CATEGORIES[code] or OTHER
        categories[category] += size
        place = trace.sites[number]
        key = place.file, place.line, category
        sites.setdefault(key, place)
        line = lines.setdefault(key, [0, 0])
        line[0] += 1
        line[1] += size
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
    )
