"""Why a device had nothing to do: each gap between two operations, by its cause.

A gap that a host's wait explains belongs to the check `host-sync` and is left out. Of what remains, a short gap is the
time that the host needed to issue the next operation; a long one is time that it spent on something else.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from windtunnel.trace.operation import FIRST_USE, LAUNCH_GAP_NS, UNKNOWN_SITE, Kind, Site
from windtunnel.trace.trace import Record

ALL = -1  # the number under which all devices together are kept


@dataclass
class Idle:
    """One device's gaps. All times in nanoseconds."""

    device: int
    first_ns: int
    busy_until_ns: int
    kernels: int = 0
    kernel_ns: int = 0
    launch_ns: int = 0
    pauses: int = 0
    pause_ns: int = 0
    longest_ns: int = 0
    waited_ns: int = 0  # by the host, since the device's latest operation
    setting_up_ns: int = 0  # of that, on what happens once: contexts, libraries
    once_ns: int = 0  # gaps in which the host did what happens once
    sites: Counter[Site] = field(default_factory=Counter)  # lines that ended a pause, by its length

    @property
    def window_ns(self) -> int:
        """From the device's first operation to the end of its last, without what happens once."""
        return self.busy_until_ns - self.first_ns - self.once_ns


class Gaps:
    """Sorts the gaps of every device, and those of all devices together: when none of them had anything to do."""

    KINDS: ClassVar = frozenset({Kind.KERNEL, Kind.COPY, Kind.COLLECTIVE, Kind.SYNCHRONIZE, Kind.STEP, Kind.HOST})

    def __init__(self) -> None:
        self.devices: dict[int, Idle] = {}
        self.steps: Counter[Site] = Counter()
        self.kernel_sites: Counter[Site] = Counter()

    def see(self, record: Record) -> None:
        """Take notice of one record."""
        if record.kind == Kind.SYNCHRONIZE:
            for waiting in self.devices.values():
                waiting.waited_ns += record.duration_ns
            return
        if record.kind == Kind.HOST:
            if record.signature.name.startswith(FIRST_USE):
                for waiting in self.devices.values():
                    waiting.waited_ns += record.duration_ns
                    waiting.setting_up_ns += record.duration_ns
            return
        if record.kind == Kind.STEP:
            self.steps[record.site] += 1
            return
        if record.kind == Kind.KERNEL and record.site.file:
            self.kernel_sites[record.site] += 1
        self._follow(record.lane.device, record)
        self._follow(ALL, record)

    def _follow(self, device: int, record: Record) -> None:
        idle = self.devices.get(device)
        if idle is None:
            idle = self.devices[device] = Idle(device, record.start_ns, record.start_ns)
        if record.kind == Kind.COLLECTIVE:  # issued, it waits for the other ranks: that is not this host's time
            idle.waited_ns += max(0, record.start_ns - max(record.issued_ns, idle.busy_until_ns))
        gap_ns = record.start_ns - idle.busy_until_ns
        if gap_ns > 0:
            idle.once_ns += min(gap_ns, idle.setting_up_ns)
            self._gap(idle, max(0, gap_ns - idle.waited_ns), record.site)
        idle.waited_ns = idle.setting_up_ns = 0
        idle.busy_until_ns = max(idle.busy_until_ns, record.end_ns)
        if record.kind == Kind.KERNEL:
            idle.kernels += 1
            idle.kernel_ns += record.duration_ns

    def home(self) -> Site:
        """A line for what concerns the whole loop: the optimizer's step, or the line of most kernels, if known."""
        for sites in (self.steps, self.kernel_sites):
            known = [site for site, _ in sites.most_common() if site.file]
            if known:
                return known[0]
        return UNKNOWN_SITE

    def _gap(self, idle: Idle, gap_ns: int, site: Site) -> None:
        if gap_ns <= LAUNCH_GAP_NS:
            idle.launch_ns += gap_ns
            return
        idle.pauses += 1
        idle.pause_ns += gap_ns
        idle.longest_ns = max(idle.longest_ns, gap_ns)
        if site.file:
            idle.sites[site] += gap_ns
