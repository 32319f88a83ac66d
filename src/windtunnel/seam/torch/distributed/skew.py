"""How long this rank waits for others, by its lines: in collectives that cannot begin before the last rank is ready.

Ranks tell one another when they are ready anyway, and how much of that their hosts had to do with; so each knows for
whom it waits, and whether it is that rank's device or its host that is late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Line:
    """One line of the program, in one group: what this rank waited there, in nanoseconds by the rank that was last."""

    def __init__(self) -> None:
        self.times = 0
        self.for_device: dict[int, int] = {}
        self.for_host: dict[int, int] = {}


class Skew:
    """The waits of this rank so far."""

    def __init__(self) -> None:
        self.lines: dict[tuple[int, str], Line] = {}

    def met(
        self, site: int, name: str, mine_ns: int, ready_ns: Sequence[int], hosts_ns: Sequence[int], ranks: Sequence[int]
    ) -> None:
        """The `ranks` of a group made a call: when each of them, its host, and this rank were ready."""
        last_ns, host_ns, rank = max(zip(ready_ns, hosts_ns, ranks, strict=True))
        line = self.lines.get((site, name))
        if line is None:
            line = self.lines[site, name] = Line()
        line.times += 1
        waited_ns = last_ns - mine_ns
        if waited_ns > 0:
            by = line.for_device if last_ns - host_ns > waited_ns // 2 else line.for_host
            by[rank] = by.get(rank, 0) + waited_ns

    def tell(self, rank: int, note: Callable[..., None]) -> None:
        """Note each line at which this rank waited, and begin anew."""
        for (site, name), line in self.lines.items():
            waits = {other: line.for_device.get(other, 0) + line.for_host.get(other, 0)
                     for other in {*line.for_device, *line.for_host}}  # fmt: skip
            if waits:
                longest = max(waits, key=lambda other: (waits[other], -other))
                note("imbalance", site, operation=name, rank=rank, times=line.times, waited_ns=sum(waits.values()),
                     other=longest, other_ns=waits[longest], device_ns=line.for_device.get(longest, 0))  # fmt: skip
        self.lines.clear()
