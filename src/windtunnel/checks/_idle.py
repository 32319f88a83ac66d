"""Why a device had nothing to do: each gap between two operations, by its cause.

A gap that a host's wait explains belongs to the check `host-sync` and is left out. Of what remains, a short gap is the
time that the host needed to issue the next operation; a long one is time that it spent on something else.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from windtunnel.trace.blocks import Block
from windtunnel.trace.columns import Numbers, counts, distinct, highest, since
from windtunnel.trace.operation import FIRST_USE, LAUNCH_GAP_NS, UNKNOWN_SITE, Kind, Site

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

    def __init__(self) -> None:
        self.devices: dict[int, Idle] = {}
        self.steps: Counter[Site] = Counter()
        self.kernel_sites: Counter[Site] = Counter()

    def see(self, block: Block) -> None:
        """Take notice of a block."""
        sites = block.trace.sites
        for site, times in counts(block.site[block.kind == Kind.STEP]):
            self.steps[sites[site]] += times
        for site, times in counts(block.site[block.kind == Kind.KERNEL]):
            if sites[site].file:
                self.kernel_sites[sites[site]] += times
        once = np.array([one.name.startswith(FIRST_USE) for one in block.trace.signatures], dtype=bool)
        setting_up = (block.kind == Kind.HOST) & once[block.signature]
        set_up = np.cumsum(np.where(setting_up, block.duration, 0))
        waited = np.cumsum(np.where(setting_up | (block.kind == Kind.SYNCHRONIZE), block.duration, 0))
        work = np.flatnonzero(block.on_device)
        for device in distinct(block.device[work])[0]:
            self._follow(device, block, work[block.device[work] == device], waited, set_up)
        if len(work):
            self._follow(ALL, block, work, waited, set_up)
        for idle in self.devices.values():
            idle.waited_ns += int(waited[-1])
            idle.setting_up_ns += int(set_up[-1])

    def _follow(self, device: int, block: Block, work: Numbers, waited: Numbers, set_up: Numbers) -> None:
        """Take the rows of a device's work; what the host did since is counted from the block's beginning."""
        first_ns = int(block.start[work[0]])
        idle = self.devices.get(device)
        if idle is None:
            idle = self.devices[device] = Idle(device, first_ns, first_ns)
            idle.waited_ns, idle.setting_up_ns = -int(waited[work[0]]), -int(set_up[work[0]])
        start, end, kernels = block.start[work], block.end[work], block.kind[work] == Kind.KERNEL
        until = highest(end, idle.busy_until_ns)
        waits, setting_up = since(waited, work, idle.waited_ns), since(set_up, work, idle.setting_up_ns)
        # Issued, a collective waits for the other ranks: that is not this host's time.
        together = block.kind[work] == Kind.COLLECTIVE
        waits += np.where(together, np.maximum(0, start - np.maximum(block.issued[work], until)), 0)
        gaps = start - until
        idle.once_ns += int(np.minimum(gaps, setting_up)[gaps > 0].sum())
        self._sort(idle, np.maximum(0, gaps - waits)[gaps > 0], block.site[work][gaps > 0], block)
        idle.waited_ns, idle.setting_up_ns = -int(waited[work[-1]]), -int(set_up[work[-1]])
        idle.busy_until_ns = max(idle.busy_until_ns, int(end.max()))
        idle.kernels += int(kernels.sum())
        idle.kernel_ns += int((end - start)[kernels].sum())

    def _sort(self, idle: Idle, gaps: Numbers, sites: Numbers, block: Block) -> None:
        long = gaps > LAUNCH_GAP_NS
        idle.launch_ns += int(gaps[~long].sum())
        for gap_ns, number in zip(gaps[long].tolist(), sites[long].tolist(), strict=True):
            idle.pauses += 1
            idle.pause_ns += gap_ns
            idle.longest_ns = max(idle.longest_ns, gap_ns)
            site = block.trace.sites[number]
            if site.file:
                idle.sites[site] += gap_ns

    def home(self) -> Site:
        """A line for what concerns the whole loop: the optimizer's step, or the line of most kernels, if known."""
        for sites in (self.steps, self.kernel_sites):
            known = [site for site, _ in sites.most_common() if site.file]
            if known:
                return known[0]
        return UNKNOWN_SITE
