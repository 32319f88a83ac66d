"""Memory that a loop leaves behind: a sample of the allocations, each followed until its memory is free again.

The history of all allocations would tell, but costs too much to be always on. A sample does: a line whose blocks stay,
from the first times that it runs to the program's last kernels, is one that something keeps references to. The sample
begins with every allocation, and is thinned to every second, fourth, ... one as a program goes on.
"""

from __future__ import annotations

import random
import sys
import weakref
from collections import Counter, defaultdict
from types import CodeType, FrameType

import torch

from windtunnel.machine.device import Device
from windtunnel.seam.sites import Sites
from windtunnel.seam.torch.state.core import Core
from windtunnel.seam.torch.tags import Tag
from windtunnel.trace.operation import UNKNOWN_SITE
from windtunnel.trace.schema import Leak
from windtunnel.trace.trace import Table

MOST = 1024
"""Samples that are kept; when there are as many, those whose memory is free go, and the sample is thinned."""
MIN_BYTES = 4 << 10
"""Of an allocation: a log of losses kept on the device grows by 512 bytes for each value, which is fine."""
ROUNDS = 10  # of a loop: caches and the states of optimizers fill within the first few
LATE = 0.9  # of the launches have been made when the last block is: what was made before the work is no leak
PARTS, PART = 4, 0.15
"""A line runs so many times; in each quarter of them it leaves at least so much of what it leaves behind."""

CALL: CodeType = torch.nn.Module._call_impl.__code__
TRANSFERS = "windtunnel.seam.torch.dispatch.moves"


class Sample(weakref.ref[Tag]):
    """An allocation that is followed: of `size` bytes at a line, which had made `before` others, in the loop's `turn`.

    `born` and `died` count the launches on the device until then; it stands for `weight` allocations.
    """

    __slots__ = ("before", "born", "device", "died", "place", "size", "turn", "weight")

    born: int
    died: int
    before: int
    device: Device
    place: tuple[int, int]
    size: int
    turn: int
    weight: int


class Leaks:
    """The sample of one emulation. `left` allocations are not looked at until the next one is."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._sites = Sites(Table([UNKNOWN_SITE]))  # not the trace's, which holds the lines of its rows alone
        self.left = 0
        self._every = 1
        self._samples: list[Sample] = []
        self._made: Counter[tuple[int, int]] = Counter()  # allocations by device and line
        self._turn = 0
        self._site = -1
        self._dice = random.Random(0)

    def sample(self, tag: Tag, index: int) -> None:
        """Follow an allocation on a device, unless it is small, loaded or made by a constructor."""
        if self._every > 1:
            self.left = self._dice.randrange(2 * self._every - 1)
        else:
            self.left = 0
            while self._dice.getrandbits(1):  # as `randrange(1)` draws
                pass
        core = self.core
        if tag.size < MIN_BYTES or core.local.host.index:
            return
        site = self._sites.number()
        if not self._turns(site):
            return
        device = core.machine.devices[index]
        place = device.index, site
        found = Sample(tag, _died)
        found.born, found.died = _launches(device), sys.maxsize
        found.device, found.place, found.size, found.turn = device, place, tag.size, self._turn
        found.before, found.weight = self._made[place], self._every
        self._made[place] += self._every
        self._samples.append(found)
        if len(self._samples) >= MOST:
            self._thin()

    def _turns(self, site: int) -> bool:
        """Whether a loop of the program's may have asked, of whose turns the next one begins where something changes.

        A model's own loops are no loop of the program's: all of a model's call belongs to one turn. A call is known
        again by a switch of its frame that only tracing looks at.
        """
        call: FrameType | None = None
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if code is CALL:
                call = frame
            elif code.co_name == "__init__" or frame.f_globals.get("__name__") == TRANSFERS:
                return False
            frame = frame.f_back
        if call is None:
            self._turn += site != self._site
        elif call.f_trace_lines:
            call.f_trace_lines = False
            self._turn += 1
        self._site = site if call is None else -1
        return True

    def _thin(self) -> None:
        alive = [one for one in self._samples if _lasted(one)]
        self._every *= 2
        if len(alive) > MOST // 2:
            alive = alive[::2]
            for one in alive:
                one.weight *= 2
        self._samples = alive

    def found(self) -> list[Leak]:
        """What loops left behind on each device, if anything: the line that left most of it, with the sum of all."""
        lines: dict[tuple[int, int], list[Sample]] = defaultdict(list)
        for one in self._samples:
            if _lasted(one):
                lines[one.place].append(one)
        for place, kept in lines.items():
            end = max(one.died for one in kept)  # all at once: sooner ended what belonged to the last turns alone
            lines[place] = [one for one in kept if one.died == end]
        leaking = {place: left for place, left in lines.items() if _steady(left, self._made[place])}
        found: list[Leak] = []
        for device in sorted({index for index, _ in leaking}):
            sizes = {
                site: sum(one.size * one.weight for one in left)
                for (index, site), left in leaking.items()
                if index == device
            }
            worst = max(sizes, key=lambda site: sizes[site])
            site = self._sites.table[worst]
            blocks = sum(one.weight for one in leaking[device, worst])
            found.append(
                {
                    "device": device,
                    "file": site.file,
                    "line": site.line,
                    "function": site.function,
                    "lines": len(sizes),
                    "blocks": round(blocks, 2 - len(str(blocks))),
                    "size_bytes": sum(sizes.values()),
                }
            )
        return found


def _launches(device: Device) -> int:
    streams = device.streams
    return streams[0].epoch if len(streams) == 1 else sum(stream.epoch for stream in streams)


def _died(sample: Sample) -> None:
    # Anywhere, also in the middle of an operator: nothing but a number changes.
    sample.died = _launches(sample.device)


def _lasted(sample: Sample) -> bool:
    """Whether its memory was in use up to the last launches, if those so far are all."""
    return sample.died >= LATE * _launches(sample.device)


def _steady(left: list[Sample], made: int) -> bool:
    """Whether a line, of whose `made` allocations these stayed, left as much behind from its beginning to the end."""
    if len({one.turn for one in left}) < ROUNDS or left[-1].born < LATE * _launches(left[0].device):
        return False
    parts = Counter(dict.fromkeys(range(PARTS), 0))
    for one in left:
        parts[min(PARTS - 1, PARTS * one.before // made)] += one.weight
    return min(parts.values()) >= PART * sum(parts.values())
