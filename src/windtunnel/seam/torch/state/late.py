"""Copies that are really late: what a non_blocking copy writes into pinned memory lands when the host waits for it.

The bytes are taken when the copy is submitted and written when the host becomes ordered after it, which is always a
legal execution of the program and never a torn one. A host that reads earlier reads what was there before, every time.

Nothing here keeps memory alive: a copy in flight holds neither its source nor its destination on CUDA either. The
allocators wait for it where they have to.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from windtunnel.machine.order import Access, knows
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.state.core import Core
from windtunnel.seam.torch.tags import CPU, HOST_TAG, Storage, parts_of, storage_of

if TYPE_CHECKING:
    from windtunnel.machine.stream import Stream

_PHYSICAL = vars(torch._C.StorageBase)["device"]


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes under a version counter of their own, so that writing them is invisible to autograd."""
    return _over(storage_of(tensor), tensor.dtype, int(tensor.storage_offset()), tensor.shape, tensor.stride())


def _over(
    storage: Storage, dtype: torch.dtype, offset: int, shape: torch.Size, stride: tuple[int, ...]
) -> torch.Tensor:
    physical = _PHYSICAL.__get__(storage)  # "meta" in a rehearsal without data
    with torch._C._DisableTorchDispatch():
        plain = torch.empty(0, dtype=dtype, device=physical)
    return plain.set_(storage, offset, shape, stride)


class Place(NamedTuple):
    """The bytes of a strided tensor, as long as its memory lives."""

    storage: weakref.ref[Storage]
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Place:
        """Where a tensor lies."""
        return cls(
            weakref.ref(storage_of(tensor)), tensor.dtype, int(tensor.storage_offset()), tensor.shape, tensor.stride()
        )

    def tensor(self) -> torch.Tensor | None:
        """An alias of the bytes, or None when the memory was given back."""
        storage = self.storage()
        if storage is None:
            return None
        return _over(storage, self.dtype, self.offset, self.shape, self.stride)

    def lies_in(self, tag: object) -> bool:
        """Whether a storage's tag is that of this place."""
        storage = self.storage()
        return storage is not None and storage._wt is tag


class Landing(NamedTuple):
    """A copy on its way into pinned memory: `value` will be written into `destination`."""

    agent: int
    epoch: int
    end_ns: int
    destination: Place
    value: torch.Tensor
    access: Access


class Source(NamedTuple):
    """A copy that still reads pinned memory: `destination` was filled from `source` at submission."""

    agent: int
    epoch: int
    stream: Stream
    source: Place
    destination: Place
    access: Access


def byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte and the end of what a strided tensor covers in its storage."""
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    if tensor.numel() == 0:
        return start, start
    last: int = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * size


class Late:
    """The copies between pinned memory and devices that the host does not know to be done.

    `clock` lands each at its modelled completion instead, as soon as the host's clock has passed it. Threads take turns
    at the public methods (`Turns`): nobody comes back from a wait before the bytes that it waited for are written.
    """

    def __init__(self, core: Core, clock: bool) -> None:
        self.core = core
        self.clock = clock
        self.landings: list[Landing] = []
        self.sources: list[Source] = []
        self.waiting: list[Callable[[], bool]] = []
        """Called where the host has become ordered after something; those that say so are called again."""

    @property
    def pending(self) -> bool:
        """Whether anything is on its way."""
        return bool(self.landings or self.sources)

    def land(self) -> None:
        """Write what the host is now ordered after (or, by the clock, what is complete)."""
        machine = self.core.machine
        now = self.core.local.host.now_ns
        done: list[Landing] = []
        waiting: list[Landing] = []
        for landing in self.landings:
            over = landing.end_ns <= now if self.clock else machine.host_knows(landing.agent, landing.epoch)
            (done if over else waiting).append(landing)
        self._write(done, waiting)
        self.sources = [s for s in self.sources if s.source.storage() and not machine.host_knows(s.agent, s.epoch)]
        self.waiting = [call for call in self.waiting if call()]

    def _write(self, done: list[Landing], waiting: list[Landing]) -> None:
        self.landings = waiting  # first: no landing is written twice
        for landing in done:
            destination = landing.destination.tensor()
            if destination is not None:
                with torch._C._DisableTorchDispatch():
                    destination.copy_(landing.value)
                storage_of(destination)._wt.late -= 1

    def finish(self, tag: object = None) -> None:
        """Write everything that is on its way into one storage (or all): a device is about to read it."""
        done = [item for item in self.landings if tag is None or item.destination.lies_in(tag)]
        self._write(done, [item for item in self.landings if tag is not None and not item.destination.lies_in(tag)])

    def to_host(
        self, stream: Stream, destination: torch.Tensor, value: torch.Tensor, end_ns: int, access: Access
    ) -> None:
        """Put a device-to-host copy on its way: `destination` keeps its bytes until it lands."""
        tag = storage_of(destination)._wt
        tag.late += 1
        self.landings.append(Landing(stream.agent, stream.epoch, end_ns, Place.of(destination), value, access))

    def to_device(self, stream: Stream, source: torch.Tensor, destination: torch.Tensor, access: Access) -> None:
        """Remember that a copy still reads pinned memory."""
        self.sources.append(Source(stream.agent, stream.epoch, stream, Place.of(source), Place.of(destination), access))

    # ------------------------------------------------------------------ what the host does meanwhile

    def host_operation(self, call: Call) -> None:
        """Called before an operator on host tensors runs: report what it reads too early or overwrites."""
        if call.plan.view:
            return
        if self.clock:
            self.land()
        dense = (t for t in call.tensors() if t.layout is torch.strided and not t.is_nested)
        pinned = [tensor for tensor in dense if storage_of(tensor)._wt is not HOST_TAG]
        if pinned:
            args = call.args
            written = {id(t) for i in call.plan.mutated if i < len(args) for t in tensors_in((args[i],))}
            for tensor in pinned:
                self.host_touch(tensor, id(tensor) in written)

    def host_touch(self, tensor: torch.Tensor, write: bool = False) -> None:
        """Report an access of the host to pinned memory that a copy still uses."""
        if tensor.layout is not torch.strided:
            for part in parts_of(tensor):
                self.host_touch(part, write)
            return
        if self.clock:
            self.land()
        tag = storage_of(tensor)._wt
        if tag is HOST_TAG or tag.device != CPU:
            return
        start, end = byte_range(tensor)
        for landing in [item for item in self.landings if item.destination.lies_in(tag)]:
            if landing.access.start < end and start < landing.access.end:
                self._report("stale-read", landing.access, write, start, end)
        for source in [item for item in self.sources if item.source.lies_in(tag)] if write else ():
            if source.access.start < end and start < source.access.end:
                self._report("early-overwrite", source.access, write, start, end)

    def device_touch(self, tensor: torch.Tensor, stream: Stream, write: bool) -> None:
        """Called before a copy on `stream` reads or writes pinned memory: what is on its way into it comes before.

        A copy of a stream that this one does not wait for may as well come after: that is reported.
        """
        if tensor.layout is not torch.strided:
            for part in parts_of(tensor):
                self.device_touch(part, stream, write)
            return
        tag = storage_of(tensor)._wt
        if tag is HOST_TAG or tag.device != CPU:
            return
        start, end = (0, tag.size) if tensor.is_nested else byte_range(tensor)
        first = [item.access for item in self.landings if item.destination.lies_in(tag)]
        if write:
            first += [item.access for item in self.sources if item.source.lies_in(tag)]
        machine = self.core.machine
        for access in first:
            ordered = knows(stream.order, access.agent, access.epoch) or machine.host_knows(access.agent, access.epoch)
            if access.agent != stream.agent and not ordered and access.start < end and start < access.end:
                lane = machine.lane(self.core.local.host, stream)
                second = Access(stream.agent, stream.epoch + 1, start, end, write, lane, self.core.site())
                machine.hazard("unsynchronized-access", access, second)
        self.finish(tag)

    def overwritten(self, tensor: torch.Tensor) -> None:
        """Called after the host wrote `tensor`: a copy that no kernel followed yet delivers the new bytes."""
        if tensor.layout is not torch.strided:
            for part in parts_of(tensor):
                self.overwritten(part)
            return
        tag = storage_of(tensor)._wt
        for source in self.sources:
            if source.source.lies_in(tag) and source.stream.epoch == source.epoch:
                read, written = source.source.tensor(), source.destination.tensor()
                if read is not None and written is not None:
                    with torch._C._DisableTorchDispatch():
                        written.copy_(read)

    def _report(self, code: str, first: Access, write: bool, start: int, end: int) -> None:
        core = self.core
        site = core.site()
        machine = core.machine
        lane = machine.lane(core.local.host, machine.devices[0].default_stream)
        machine.hazard(code, first, Access(0, 0, start, end, write, lane, site))
