"""Which tensor's memory lies at an address here: what a kernel is given are addresses of this process."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from windtunnel.machine.device import Device
from windtunnel.machine.memory.blocks import Block
from windtunnel.machine.memory.driver import PAGE_BYTES
from windtunnel.seam.cuda_runtime.addresses import AddressMap, Allocation
from windtunnel.seam.cuda_runtime.memory import Pages, VariableMemory, WholePages
from windtunnel.seam.living import living
from windtunnel.seam.torch.state.blank import unwritten
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import Storage, Tag, bytes_in, storage_of

POINTER = torch._C.StorageBase.data_ptr  # type: ignore[attr-defined]
PHYSICAL = vars(torch._C.StorageBase)["device"]
MOST_BLANK = 1 << 26
"""Bytes of `cudaMalloc` of which it is known whether somebody wrote them: they are looked through after each launch."""
SYNTHETIC = 1 << 45
"""Where memory lies for host code that has none here: of tensors without values."""


class TensorAddresses(AddressMap):
    """The memory of a program's tensors on devices, from the moment that it can be asked for."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state
        self._blocks: dict[int, int] = {}  # where a block's memory begins here, by the block's identity
        self._held: dict[int, int] = {}  # and the other way: which block the memory that begins there has now
        self._storages: dict[int, weakref.ref[Storage]] = {}
        self._dead: deque[tuple[int, int]] = deque()
        self._shown = AddressMap()  # what Python is told of tensors' places, each with where it is here
        self._joined = False
        self.tell: Callable[[int, int], None] | None = None  # makes C++ find a storage's data at an address

    def join(self) -> None:
        """Begin to follow tensors; those that live already are looked for."""
        if self._joined:
            return
        self._joined = True
        self.state.observers.join(placed=self._placed, died=self._died, moved=self._placed)
        for found in living(torch.Tensor):
            self._adopt(found)

    def show(self, tell: Callable[[int, int], None]) -> None:
        """Let C++ find the data of tensors without values where it stands for them."""
        self.tell = tell
        self.join()
        for start, found in list(self._storages.items()):
            storage = found()
            if storage is not None and not has_bytes(storage):
                tell(storage._cdata, start)

    def leave(self) -> None:
        """Follow them no more."""
        if self._joined:
            self._joined = False
            self.state.observers.leave(placed=self._placed, died=self._died, moved=self._placed)

    def allocation(self, address: int) -> Allocation | None:
        """The memory that an address is in."""
        self._drain()
        return super().allocation(address)

    def storage(self, allocation: Allocation) -> Storage | None:
        """The storage whose memory it is."""
        found = self._storages.get(allocation.start)
        return None if found is None else found()

    def has_bytes(self, allocation: Allocation) -> bool:
        """Whether there is memory here for a tensor's data."""
        storage = self.storage(allocation)
        return storage is None or has_bytes(storage)

    def tensor(self, allocation: Allocation) -> torch.Tensor | None:
        """The bytes of a tensor's memory, as a tensor that shares them."""
        storage = self.storage(allocation)
        return None if storage is None else bytes_in(storage)

    def mark_unwritten(self, allocation: Allocation) -> None:
        """Say which bytes of a tensor nobody wrote, for a launch that looks at them and clears what it writes."""
        tag = tag_in(allocation)
        blank = None if tag is None else unwritten(tag, allocation.size, 0)
        if blank is not None:
            self.add(replace(allocation, blank=blank.data))

    def take_back(self, allocation: Allocation) -> None:
        """After a launch, forget the bytes that nobody wrote where none is left."""
        tag = tag_in(allocation)
        if tag is not None and isinstance(tag.blank, np.ndarray) and not tag.blank.any():
            tag.blank = None
        known = self.before(allocation.start)
        if known is not None and known.blank is not None:
            self.add(replace(known, blank=None))

    def fill(self, allocation: Allocation) -> None:
        """All of it counts as written from now on."""
        tag = tag_in(allocation)
        if tag is not None:
            tag.blank = None

    def mapped(self, address: int) -> bool:
        """Whether a device has memory there, of whomever: then its hardware does not notice the access."""
        near = self.before(address)
        if near is not None and isinstance(near.owner, Pages):  # which the driver gives in whole pages
            return address < near.start + -(-near.size // PAGE_BYTES) * PAGE_BYTES
        tag = None if near is None else tag_in(near)
        if near is None or tag is None or not isinstance(tag.block, Block):
            return False
        there = tag.block.address + address - near.start
        segments = self.state.device(near.device).allocator.segments.values()
        return any(segment.address <= there < segment.address + segment.size for segment in segments)

    def of(self, tensor: torch.Tensor) -> int:
        """Where host code finds a tensor's data; one without values gets an address that stands for it."""
        storage = storage_of(tensor)
        return _start(storage, storage._wt.block) + int(tensor.storage_offset()) * tensor.element_size()

    def real(self, address: int) -> int:
        """Where an address lies here that `data_ptr()` gave; any other as it is."""
        if address < PAGE_BYTES or self.allocation(address) is not None:
            return address
        found = self._shown.allocation(address)
        return address if found is None else int(str(found.owner)) + address - found.start

    def _adopt(self, tensor: torch.Tensor) -> None:
        try:
            storage = storage_of(tensor)
        except (NotImplementedError, RuntimeError):
            return
        tag = storage._wt
        if tag.device >= 0 and tag.frees is self.state.device(tag.device).frees:
            self._placed(storage, tag.device, tag)

    def _placed(self, storage: Storage, index: int, tag: Tag) -> None:
        self._drain()
        block = tag.block
        if not isinstance(block, Block):
            return
        start = _start(storage, block)
        if self.tell is not None and not has_bytes(storage):
            self.tell(storage._cdata, start)
        self._blocks[id(block)], self._held[start] = start, id(block)
        self.add(Allocation(start, tag.size, "", device=index, owner=weakref.ref(tag)))
        self._storages[start] = weakref.ref(storage)
        if block.address != start:
            self._shown.add(Allocation(block.address, tag.size, device=index, owner=start))

    def _died(self, device: Device, block: Block) -> None:
        self._dead.append((id(block), block.address))

    def _drain(self) -> None:
        while self._dead:
            block, shown = self._dead.popleft()
            start = self._blocks.pop(block, -1)
            if self._held.get(start) == block:  # a storage that was placed anew has another one
                del self._held[start]
                self._storages.pop(start, None)
                self.remove(start)
                self._shown.remove(shown)


class Reachable:
    """What kernels reach by the same addresses: memory of devices and page-locked memory of the host."""

    def __init__(self, devices: TensorAddresses, pinned: AddressMap) -> None:
        self.devices, self.pinned = devices, pinned
        self.mapped = devices.mapped

    def allocation(self, address: int) -> Allocation | None:
        """The range that an address is in."""
        return self.devices.allocation(address) or self.pinned.allocation(address)

    def allocations(self) -> Sequence[Allocation]:
        """All of them, by address."""
        devices, pinned = self.devices.allocations(), self.pinned.allocations()
        return sorted((*devices, *pinned), key=lambda one: one.start) if pinned else devices


def has_bytes(storage: Storage) -> bool:
    """Whether there is memory here for a storage: without data there is none."""
    return bool(PHYSICAL.__get__(storage).type != "meta")


def _start(storage: Storage, block: object) -> int:
    """Where host code finds a storage's data."""
    if has_bytes(storage):
        return int(POINTER(storage))
    return SYNTHETIC + block.address if isinstance(block, Block) else 0


def tag_in(allocation: Allocation, device: int = 0) -> Tag | None:
    """The tag of the tensor that an allocation is of; not held, since its end is the memory's. Of a variable, that of
    a device's."""
    if isinstance(allocation.owner, Pages):
        return _own(allocation.owner, allocation)
    if isinstance(allocation.owner, VariableMemory):
        of_device = allocation.owner.tags.setdefault(device, Tag(device, allocation.size))
        return of_device if isinstance(of_device, Tag) else None
    found = allocation.owner() if isinstance(allocation.owner, weakref.ref) else None
    return found if isinstance(found, Tag) else None


def _own(pages: Pages, allocation: Allocation) -> Tag:
    """The tag of memory that host code took itself."""
    if not isinstance(pages.tag, Tag):
        pages.tag = Tag(allocation.device, allocation.size)
        # Managed memory is the host's as well, whose writes nobody sees.
        pages.tag.blank = [] if not isinstance(pages, WholePages) and allocation.size <= MOST_BLANK else None
        pages.tag.site = pages.made.site if pages.made is not None else 0
    return pages.tag
