"""What every part of the state stands on: the machine, each thread's place, and the program's lines."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from time import thread_time_ns
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import ReferenceType, WeakSet

import torch
from torch.utils.data import dataloader
from torch.utils.data._utils import pin_memory

from windtunnel.machine.capture import Capture, refuse_unsafe
from windtunnel.machine.clock import HostThread
from windtunnel.machine.device import Device
from windtunnel.machine.machine import Cost, Machine
from windtunnel.machine.stream import Stream
from windtunnel.seam.sites import Sites
from windtunnel.seam.torch.state.host_work import HostWork
from windtunnel.seam.torch.tags import HOST_TAG, Tag

if TYPE_CHECKING:
    from windtunnel.seam.torch.state.crossings import Crossings


class Apart(NamedTuple):
    """A kernel that was computed apart from the machine: what a launch of it costs, and which of its tensors it writes.

    `written` are positions among the tensors of its arguments.
    """

    name: str
    cost: Cost
    written: frozenset[int]


class Local(threading.local):
    """One thread's place: its device, its streams, its clock, and what the seam is doing there at the moment."""

    device = 0
    inner = False
    explicit = False
    fake_device: torch.device | None = None
    half = False
    valued = False  # in a rehearsal without data: whether device tensors are made with values
    marked = False
    apart: list[Apart] | None = None  # while a compiled graph's values are computed, the program's kernels in it
    reason = ""
    operators = 0  # how many are running, one in another; with `left_ns` and `covered_ns` for a `Meter`
    covered_ns = 0
    host: HostThread
    streams: list[Stream]
    callers: list[Stream] | None = None
    choosing: torch.autograd.graph.Node | None = None  # that in backward made another stream the current one
    crossings: Crossings | None = None  # in a backward pass, where it goes from one stream to another
    floated: list[ReferenceType[Tag]] | None = None  # in a backward pass, what C++ made there of nothing
    nodes: dict[int, Stream] | None = None

    def __init__(self, core: Core) -> None:
        if threading.get_ident() != core.thread:
            core.machine.turns.begin()
        self.host = core.parents.pop(threading.get_ident(), core.machine.host)
        self.streams = [device.default_stream for device in core.machine.devices]
        self.handles: dict[
            Stream, int
        ] = {}  # by which a stream of the pool was made current, where that was its handle
        self.switches: list[tuple[int, tuple[Stream, ...]]] = []  # which streams were current from which node on
        self.left_ns = thread_time_ns()
        # A loader's thread, which works whenever this machine lets it: nothing may depend on when that is.
        self.pins = getattr(threading.current_thread(), "_target", None) is pin_memory._pin_memory_loop


class Meter:
    """Brings a thread's modelled clock up to what its processor time since the last operator says, times `factor`."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def charge(self, local: Local) -> None:
        """Let the thread's host take what it worked since the last operator; nothing while one runs."""
        if local.operators:
            return
        now_ns = thread_time_ns()
        spent_ns = round((now_ns - local.left_ns) * self.factor)
        local.left_ns = now_ns
        local.host.now_ns += max(0, spent_ns - local.covered_ns)
        local.covered_ns = max(0, local.covered_ns - spent_ns)


class CallsUnderWay(Protocol):
    """Collectives that are under way."""

    def finish(self) -> None:
        """Wait for those of this thread, and put them on their streams."""

    def forget(self) -> None:
        """In a forked child: nobody there carries them."""


class Core:
    """What the parts of a `State` are given; the state is one itself."""

    def __init__(self, machine: Machine, sites: Sites) -> None:
        self.machine = machine
        self.sites = sites
        self.parents: dict[int, HostThread] = {}  # by a thread's number, until it begins
        self.thread = threading.get_ident()
        self.local = Local(self)
        self.meter: Meter | None = None  # where the host's own work is measured into the modelled clock
        self.work: HostWork | None = None  # where it is measured beside that clock
        self.captures: list[Capture] = []  # that are underway, of all threads
        self.loaders: WeakSet[dataloader._MultiProcessingDataLoaderIter] = WeakSet()  # that have workers
        self.under_way: CallsUnderWay | None = None  # while there are any

    def host(self) -> HostThread:
        """This thread's clock, brought up to now where the host's own work is measured."""
        self.arrive()
        if self.meter is not None:
            self.meter.charge(self.local)
        return self.local.host

    def thread_of_cuda(self) -> tuple[int, bool]:
        """Which thread CUDA sees: this one, or the one that runs its backward pass."""
        return self.local.host.index, self.local.callers is not None

    def may_be_unsafe(self) -> bool:
        """Whether PyTorch makes a potentially unsafe call as it is: in a stream's capture it relaxes the rules for it.

        Raises:
            AcceleratorError: another stream's capture forbids the call, and is invalid now.
        """
        if not self.captures or self.local.pins:
            return True
        if self.local.streams[self.local.device].capture is not None:
            return False
        refuse_unsafe(self.captures, self.thread_of_cuda())
        return True

    def apart(self) -> AbstractContextManager[None]:
        """What runs in it is none of the host's own work: the emulation's, or counted elsewhere."""
        return nullcontext() if self.work is None else self.work.apart()

    def arrive(self) -> None:
        """Wait for the collectives of this thread that are under way, before anything is done on a device."""
        if self.under_way is not None:
            self.under_way.finish()

    def site(self) -> int:
        """The number of the program's line that is running."""
        return self.sites.caller().site

    def device(self, index: int) -> Device:
        """The machine's device of the program's number `index`."""
        return self.machine.devices[index]

    def drain(self, device: Device) -> None:
        """Give back the memory of storages that died."""
        device.drain()

    def number(self, tag: Tag) -> int:
        """A number that names a storage in the trace; 0 for pageable host memory."""
        if tag is HOST_TAG:
            return 0
        if not tag.number:
            # Counted by thread, so that it does not depend on which thread happens to come first.
            host = self.local.host
            with self.machine.turns.lock:
                if not tag.number:
                    host.storages += 1
                    tag.number = (host.index << 32) + host.storages
        number: int = tag.number
        return number
