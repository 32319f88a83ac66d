"""What the seams into JAX, TensorFlow and MXNet share: from a framework's call to the machine's verbs.

A recorder keeps the price of each signature, finds the line of the program that asked, holds device memory while a
framework object lives, and refuses what does not fit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from windtunnel.errors import HostMemoryError
from windtunnel.machine.clock import HostThread
from windtunnel.machine.device import Device
from windtunnel.machine.machine import Cost, Machine
from windtunnel.machine.memory.blocks import Block
from windtunnel.machine.memory.oom_text import OutOfMemory as AllocatorFull
from windtunnel.machine.stream import Stream
from windtunnel.seam.host_memory import LARGE, Room
from windtunnel.seam.sites import Sites
from windtunnel.trace.kineto import copy_name
from windtunnel.trace.operation import Note, Signature
from windtunnel.trace.units import format_bytes

_DEPTH = 24

FOLLOW_UP_NS = 2_000
"""Host time of each further kernel of one compiled program: about what a launch from C++ costs (modelled)."""


class Work(NamedTuple):
    """One kernel of a compiled program and how often it runs each time."""

    signature: Signature
    times: int = 1


class Installed(NamedTuple):
    """What a seam's `install` returns: how to take the GPUs away again."""

    uninstall: Callable[[], None]

    def stop_threads(self) -> None:
        """None of its operators is Python that C++ calls, so Python stops them itself."""


class OutOfMemory(Exception):  # noqa: N818 - a signal between the recorder and a seam, never shown
    """An allocation does not fit; the seam turns it into its framework's own error."""

    def __init__(self, size_bytes: int, device: int) -> None:
        super().__init__(f"{size_bytes} bytes do not fit on device {device}")
        self.size_bytes = size_bytes
        self.device = device


class Pool:
    """Memory of one device as its framework counts it; sizes in bytes, rounded up to `grain`."""

    def __init__(self, limit_bytes: int, grain: int) -> None:
        self.limit_bytes = limit_bytes
        self.grain = grain
        self.used_bytes = 0
        self.peak_bytes = 0
        self.largest_bytes = 0
        self.allocations = 0

    def rounded(self, size_bytes: int) -> int:
        """`size_bytes` as the framework's allocator would take it."""
        return max(1, -(-size_bytes // self.grain)) * self.grain

    def fits(self, size_bytes: int) -> bool:
        """Whether that much can still be taken."""
        return self.used_bytes + self.rounded(size_bytes) <= self.limit_bytes

    def take(self, size_bytes: int) -> int:
        """Count an allocation; returns what it takes after rounding."""
        size = self.rounded(size_bytes)
        self.used_bytes += size
        self.allocations += 1
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self.largest_bytes = max(self.largest_bytes, size)
        return size


class Holding:
    """Device memory that lives as long as this object. Objects that share a buffer share the holding."""

    __slots__ = ("__weakref__", "_block", "_recorder", "_size", "device")

    def __init__(self, recorder: WorkRecorder, device: int, size: int, block: Block | None) -> None:
        self._recorder = recorder
        self.device = device
        self._size = size
        self._block = block

    def __del__(self) -> None:
        # It may be any thread and any moment: nothing here may take a lock or move time.
        self._recorder.released.append((self.device, self._size, self._block))


class Session(Protocol):
    """What is asked of the emulation that a framework joins."""

    @property
    def machine(self) -> Machine:
        """The emulated machine."""

    @property
    def options(self) -> object:
        """The options of the emulation."""


class WorkRecorder:
    """Writes what one framework does into the session's machine.

    `limit` gives the bytes of a GPU that the framework may use, `grain` its allocator's rounding in bytes; frames of
    code that the package `generator` compiles at run time are not the program's.
    """

    def __init__(self, session: Session, limit: Callable[[int], int], grain: int = 256, generator: str = "-") -> None:
        self.session = session
        self.machine: Machine = session.machine
        self.devices: list[Device] = self.machine.devices
        self.pools = [Pool(limit(device.gpu.memory_bytes), grain) for device in self.devices]
        self.released: list[tuple[int, int, Block | None]] = []
        self.active = True
        limit_bytes = getattr(session.options, "host_memory_limit", None)
        self._room = Room(lambda: sum(pool.used_bytes for pool in self.pools), limit_bytes)
        self._costs: dict[tuple[int, Signature], Cost] = {}
        self._sites = Sites(self.machine.trace.sites, bool(getattr(session.options, "stacks", False)))
        self._generator = generator
        self._said: set[tuple[tuple[str, str | int], ...]] = set()

    # ------------------------------------------------------------------ who asks

    def host(self) -> HostThread:
        """The host thread that runs now."""
        ask = getattr(self.session, "host", None)
        return ask() if callable(ask) else self.machine.host

    def _site(self) -> int:
        """The number of the program's line that asked."""
        skip = depth = 2
        frame = sys._getframe(depth)
        while frame is not None and depth < _DEPTH:
            depth += 1
            generated = frame.f_code.co_filename == "<string>"
            if generated and frame.f_globals.get("__name__", "").startswith(self._generator):
                skip = depth + 1
            frame = frame.f_back  # type: ignore[assignment]
        return self._sites.number(skip)

    # ------------------------------------------------------------------ work

    def run(self, device: int, work: Iterable[Work], divide: int = 1) -> None:
        """Queue a program's kernels on a device's default stream; the first pays for the framework's dispatch.

        `divide` says over how many devices the program is split: each runs that part of the arithmetic and bytes.
        """
        host, site = self.host(), self._site()
        stream = self._stream(device)
        first = True
        for signature, times in work:
            cost = self._cost(device, signature if divide == 1 else _part(signature, divide))
            if not first:
                cost = cost.taking(FOLLOW_UP_NS, cost.duration_ns)
            for _ in range(times):
                self.machine.launch(host, stream, cost, site)
            first = False

    def copy(self, source: int, destination: int, size_bytes: int, blocking: bool, pinned: bool = False) -> None:
        """Queue a transfer between devices (-1 is the host); a blocking one makes the host wait for it."""
        host, site = self.host(), self._site()
        carrier = source if destination < 0 else destination
        stream = self._stream(carrier)
        if source >= 0 and destination >= 0:
            self.machine.barrier(host, self._stream(source), stream)
        signature = Signature(copy_name(source, destination, pinned))
        self.machine.copy(host, stream, signature, size_bytes, source, destination, pinned, site)
        if blocking:
            self.machine.synchronize_stream(host, stream, "cudaMemcpy (blocking)", site)

    def wait(self, device: int, name: str) -> None:
        """Make the host wait for a device's default stream."""
        stream = self._stream(device)
        self.machine.synchronize_stream(self.host(), stream, name, self._site())

    def collective(self, name: str, size_bytes: int, devices: Iterable[int]) -> None:
        """Queue one collective: it starts on all its devices when the last of them is ready."""
        host, site = self.host(), self._site()
        streams = [self._stream(index) for index in devices]
        call = Signature(name, detail=(("ranks", len(streams)),))
        self.machine.align(host, streams)
        for stream in streams:
            self.machine.collective(host, stream, call, size_bytes, site)

    def not_modelled(self, what: str, **facts: str | int) -> None:
        """Say, once for each such work, that its time is not known; `what` is a kind of the check of that name."""
        detail = (("what", what), *facts.items())
        if detail not in self._said:
            self._said.add(detail)
            self.machine.note(self.host(), Note("not-modelled", self.machine.trace.sites[self._site()], detail))

    def _stream(self, device: int) -> Stream:
        found = self.devices[device]
        if not found.context:
            found.context = True
            self.machine.first_use(self.host(), found, "context")
        return found.default_stream

    def _cost(self, device: int, signature: Signature) -> Cost:
        key = (device, signature)
        cost = self._costs.get(key)
        if cost is None:
            cost = self._costs[key] = self.machine.price(self.devices[device], signature)
            self.machine.first_use(self.host(), self.devices[device], signature.name)
        return cost

    # ------------------------------------------------------------------ memory

    def check(self, device: int, size_bytes: int) -> None:
        """Ask for memory before values are made.

        Raises:
            OutOfMemory: that much more does not fit on the device.
            HostMemoryError: it does, and this machine cannot hold the values.
        """
        self._check_device(device, size_bytes)
        if size_bytes >= LARGE and size_bytes > self._room.free():
            raise self.host_is_full(size_bytes)

    def _check_device(self, device: int, size_bytes: int) -> None:
        self.drain()
        if not self.pools[device].fits(size_bytes):
            raise OutOfMemory(size_bytes, device)

    def host_is_full(self, size_bytes: int) -> HostMemoryError:
        """What to raise where this machine, and no GPU, lacks the memory for the values."""
        limited = self._room.by_limit()
        reason = (
            "--host-memory-limit leaves no room for them" if limited else "this machine has no memory left for them"
        )
        advice = "raise --host-memory-limit" if limited else "run it on a machine with more memory"
        return HostMemoryError(
            f"{format_bytes(size_bytes)} of values fit on the emulated GPU, and {reason}: make the data smaller, or "
            f"{advice}"
        )

    def hold(self, device: int, size_bytes: int) -> Holding:
        """Take memory of a device; it is given back when the returned object dies."""
        self._check_device(device, size_bytes)
        pool = self.pools[device]
        try:
            block = self.devices[device].allocator.malloc(pool.rounded(size_bytes), 0)
        except AllocatorFull:
            raise OutOfMemory(size_bytes, device) from None
        return Holding(self, device, pool.take(size_bytes), block)

    def drain(self) -> None:
        """Give back the memory whose holders have died."""
        while self.released:
            device, size, block = self.released.pop()
            if self.active:
                self.pools[device].used_bytes -= size
                if block is not None:
                    self.devices[device].allocator.free(block)

    def close(self) -> None:
        """Stop: what dies later is no longer counted."""
        self.drain()
        self.active = False


def _part(signature: Signature, divide: int) -> Signature:
    return signature._replace(
        flops=signature.flops // divide,
        read_bytes=signature.read_bytes // divide,
        written_bytes=signature.written_bytes // divide,
        detail=(*signature.detail, ("devices", divide)),
    )
