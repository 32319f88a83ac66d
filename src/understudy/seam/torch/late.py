"""Copies that are really late: what a non_blocking copy writes into pinned memory lands when the host waits for it.

The bytes are taken when the copy is submitted and written when the host becomes ordered after it, which is always a
legal execution of the program and never a torn one. A host that reads earlier reads what was there before, every time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from understudy.machine.order import Access
from understudy.seam.torch.operators import Plan, tensors_in
from understudy.seam.torch.tags import CPU, HOST_TAG, storage_of

if TYPE_CHECKING:
    from understudy.seam.torch.state import State

_PHYSICAL: Any = vars(torch._C.StorageBase)["device"]


class Landing(NamedTuple):
    """A copy on its way into pinned memory: `value` will be written into `destination`."""

    agent: int
    epoch: int
    end_ns: int
    destination: torch.Tensor
    value: torch.Tensor
    tag: Any
    access: Access


class Source(NamedTuple):
    """A copy that still reads pinned memory: `destination` was filled from `source` at submission."""

    agent: int
    epoch: int
    stream: Any
    source: torch.Tensor
    destination: torch.Tensor
    tag: Any
    access: Access


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes under a version counter of their own, so that writing them is invisible to autograd."""
    storage = storage_of(tensor)
    physical = _PHYSICAL.__get__(storage)  # "meta" in a rehearsal without data
    with torch._C._DisableTorchDispatch():
        plain = torch.empty(0, dtype=tensor.dtype, device=physical)
    return plain.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte and the end of what a strided tensor covers in its storage."""
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    if tensor.numel() == 0:
        return start, start
    last: int = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * size


class Late:
    """The copies between pinned memory and devices that the host does not know to be done.

    `clock` lands each at its modelled completion instead, as soon as the host's clock has passed it.
    """

    def __init__(self, state: State, clock: bool) -> None:
        self.state = state
        self.clock = clock
        self.landings: list[Landing] = []
        self.sources: list[Source] = []

    @property
    def pending(self) -> bool:
        """Whether anything is on its way."""
        return bool(self.landings or self.sources)

    def land(self) -> None:
        """Write what the host is now ordered after (or, by the clock, what is complete)."""
        machine = self.state.machine
        now = self.state.local.host.now_ns
        waiting = []
        for landing in self.landings:
            done = landing.end_ns <= now if self.clock else machine.host_knows(landing.agent, landing.epoch)
            if done:
                self._write(landing)
            else:
                waiting.append(landing)
        self.landings = waiting
        self.sources = [s for s in self.sources if not machine.host_knows(s.agent, s.epoch)]

    def _write(self, landing: Landing) -> None:
        with torch._C._DisableTorchDispatch():
            landing.destination.copy_(landing.value)
        landing.tag.late -= 1

    def finish(self, tag: Any = None) -> None:
        """Write everything that is on its way into one storage (or all): a device is about to read it."""
        for landing in [item for item in self.landings if tag is None or item.tag is tag]:
            self._write(landing)
        self.landings = [item for item in self.landings if tag is not None and item.tag is not tag]

    def to_host(self, stream: Any, destination: torch.Tensor, value: torch.Tensor, end_ns: int, access: Access) -> None:
        """Put a device-to-host copy on its way: `destination` keeps its bytes until it lands."""
        tag = storage_of(destination)._us
        tag.late = (tag.late or 0) + 1
        self.landings.append(Landing(stream.agent, stream.epoch, end_ns, alias(destination), value, tag, access))

    def to_device(self, stream: Any, source: torch.Tensor, destination: torch.Tensor, access: Access) -> None:
        """Remember that a copy still reads pinned memory."""
        tag = storage_of(source)._us
        self.sources.append(Source(stream.agent, stream.epoch, stream, alias(source), alias(destination), tag, access))

    # ------------------------------------------------------------------ what the host does meanwhile

    def host_operation(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called before an operator on host tensors runs: report what it reads too early or overwrites."""
        written = {id(t) for i in plan.mutated if i < len(args) for t in tensors_in((args[i],))}
        for tensor in tensors_in((*args, *kwargs.values())):
            if tensor.layout is torch.strided and not plan.view and not tensor.is_nested:
                self.host_touch(tensor, id(tensor) in written)

    def host_touch(self, tensor: torch.Tensor, write: bool = False) -> None:
        """Report an access of the host to pinned memory that a copy still uses."""
        if self.clock:
            self.land()
        tag = storage_of(tensor)._us
        if tag is HOST_TAG or tag.device != CPU:
            return
        start, end = extent(tensor)
        for landing in [item for item in self.landings if item.tag is tag]:
            if landing.access.start < end and start < landing.access.end:
                self._report("stale-read", landing.access, write, start, end)
        for source in [item for item in self.sources if item.tag is tag] if write else ():
            if source.access.start < end and start < source.access.end:
                self._report("early-overwrite", source.access, write, start, end)

    def overwritten(self, tensor: torch.Tensor) -> None:
        """Called after the host wrote `tensor`: a copy that no kernel followed yet delivers the new bytes."""
        tag = storage_of(tensor)._us
        for source in self.sources:
            if source.tag is tag and source.stream.epoch == source.epoch:
                with torch._C._DisableTorchDispatch():
                    source.destination.copy_(source.source)

    def _report(self, code: str, first: Access, write: bool, start: int, end: int) -> None:
        state = self.state
        site = state.site()
        machine = state.machine
        lane = machine.lane(state.local.host, machine.devices[0].default_stream)
        machine.hazard(code, first, Access(0, 0, start, end, write, lane, site))
