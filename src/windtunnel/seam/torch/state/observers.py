"""Who watches an emulation: the profiler, the GPU trace and the memory history, in any combination and order.

Nobody replaces a verb to hear of it: here is one list a verb, and the one place that puts something round a verb and
takes it away. While nobody watches, a placement costs one truth test, and all others nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from windtunnel.machine.device import Device
from windtunnel.machine.machine import Machine
from windtunnel.machine.memory.blocks import Block
from windtunnel.seam.torch.tags import Storage, Tag

Placed = Callable[[Storage, int, Tag], None]
"""Is told of a storage that has got memory: the storage, its device's index, its tag."""
Died = Callable[[Device, Block], None]
"""Is told of a block whose storage has died, on whichever thread and in the middle of whatever that happens."""
Around = Callable[..., object]
"""Calls the verb that it is given, with the arguments that follow."""

VERBS = (
    "launch", "copy", "collective", "busy", "barrier", "record", "wait_event", "query_event", "query_stream",
    "synchronize_event", "synchronize_stream", "synchronize_device", "sleep",
)  # fmt: skip
"""What the machine can be asked to do outside an operator."""


class Observers:
    """The observers of one emulation, in the order in which they joined."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.placed: list[Placed] = []
        self.moved: list[Placed] = []  # are told of storages that take the place of another, tag and all
        self.profiled = 0  # windows of the profiler that are open
        self._died: list[Died] = []

    def join(
        self,
        placed: Placed | None = None,
        died: Died | None = None,
        around: Around | None = None,
        moved: Placed | None = None,
    ) -> None:
        """Tell of placements and of storages that die from now on, and let verbs of the machine be called `around`."""
        for told, one in self._lists(placed, died, moved):
            told.append(one)
        self._watch_frees()
        if around is not None:
            self.machine.turns.watch(self.machine, VERBS, around)

    def leave(
        self,
        placed: Placed | None = None,
        died: Died | None = None,
        around: Around | None = None,
        moved: Placed | None = None,
    ) -> None:
        """Tell no more, whoever joined since."""
        for told, one in self._lists(placed, died, moved):
            told.remove(one)
        self._watch_frees()
        if around is not None:
            self.machine.turns.unwatch(self.machine, VERBS, around)

    def _lists(
        self, placed: Placed | None, died: Died | None, moved: Placed | None
    ) -> list[tuple[list[Callable[..., None]], Callable[..., None]]]:
        """Where each of them that is given stands."""
        pairs: list[tuple[list[Callable[..., None]], Callable[..., None] | None]]
        pairs = [(self.placed, placed), (self._died, died), (self.moved, moved)]
        return [(told, one) for told, one in pairs if one is not None]

    def _watch_frees(self) -> None:
        for device in self.machine.devices:
            if self._died:
                device.frees.__dict__["append"] = partial(self._dies, device)
            else:
                device.frees.__dict__.pop("append", None)

    def _dies(self, device: Device, block: Block) -> None:
        for told in self._died:
            told(device, block)
        deque.append(device.frees, block)
