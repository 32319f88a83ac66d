"""Memory that host code asks the runtime for, and copies between memories."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from windtunnel import ptx
from windtunnel.machine.stream import Stream
from windtunnel.seam.cuda_runtime import errors
from windtunnel.seam.cuda_runtime.addresses import AddressMap, Allocation
from windtunnel.seam.cuda_runtime.managed import SUPPORTED, ManagedMemory, whole_pages
from windtunnel.seam.cuda_runtime.modules import Modules
from windtunnel.seam.cuda_runtime.process import Process
from windtunnel.trace.operation import Signature

ALIGNMENT = 256
HOST, DEVICE, MANAGED = 1, 2, 3
TO_DEVICE, TO_HOST, BETWEEN = 1, 2, 3
LEAKING_TURNS = 4
"""A line that leaves memory behind so often leaks; what is made once and kept does not."""


def put(address: int, value: int, size: int = 8) -> None:
    """Write a number where host code wants it."""
    ctypes.memmove(address, (value % (1 << 8 * size)).to_bytes(size, "little"), size)


def word(address: int, size: int = 8) -> int:
    """A number that host code has there."""
    return int.from_bytes(ctypes.string_at(address, size), "little")


class AllocationOrigin(NamedTuple):
    """Where and when host code took memory."""

    call: str
    site: int
    rows: int
    """How much the machine had done by then."""


class VariableMemory:
    """A module's variable, of which each device has one."""

    def __init__(self, bytes: object) -> None:
        self._bytes = bytes
        self.tags: dict[int, object] = {}  # who used it last, for the order of accesses


class Pages:
    """Bytes of this process that stand for memory of a device or page-locked memory."""

    def __init__(self, size: int, device: int, taken: int, made: AllocationOrigin | None = None) -> None:
        self._bytes = (ctypes.c_char * (size + ALIGNMENT))()
        self.address = -(-ctypes.addressof(self._bytes) // ALIGNMENT) * ALIGNMENT
        self.device = device
        self.taken = taken  # the emulated device's address of it
        self.made = made
        self.tag: object = None  # who used it last, for the order of accesses


class WholePages(Pages):
    """The same in pages of their own, which can be closed to the host."""

    def __init__(self, size: int, device: int, taken: int, made: AllocationOrigin | None = None) -> None:
        memory = ptx.zeroed(size)
        self._bytes = (ctypes.c_char * len(memory)).from_buffer(memory)
        self.address = ctypes.addressof(self._bytes)
        self.device, self.taken, self.made, self.tag = device, taken, made, None


class MemoryCalls:
    """cudaMalloc, cudaMemcpy and their kin."""

    def __init__(self, process: Process, modules: Modules) -> None:
        self.process = process
        self.modules = modules
        self.pinned = AddressMap()
        """Page-locked memory of host code's, which kernels reach as well."""
        self._numbers = itertools.count(1)
        self.managed = ManagedMemory(process.machine.host_knows)

    def malloc(self, out: int, size: int, name: str = "cudaMalloc", managed: bool = False) -> int:
        """Memory of the current device."""
        process = self.process
        process.begin()
        index = process.device()
        if not size:
            put(out, 0)
            return errors.SUCCESS
        driver = process.machine.devices[index].driver
        taken = driver.malloc(size)
        if taken is None:
            held = sum(known.size for known in process.addresses if known.device == index)
            process.note(
                "out-of-memory", process.site(), device=index, requested_bytes=size, free_bytes=driver.free_bytes,
                memory_bytes=driver.total_bytes, allocated_bytes=held, reserved_bytes=driver.reserved_bytes,
            )  # fmt: skip
            return errors.OUT_OF_MEMORY
        driver.note_own(size)
        made = AllocationOrigin(name, process.site(), len(process.machine.trace.rows))
        pages = (WholePages if managed else Pages)(size, index, taken, made)
        text = f"{name} number {next(self._numbers)}"
        traced = managed and SUPPORTED
        process.addresses.add(Allocation(pages.address, size, text, traced=traced, device=index, owner=pages))
        put(out, pages.address)
        return errors.SUCCESS

    def free(self, address: int) -> int:
        """Give memory of a device back; the host waits for the device."""
        process = self.process
        if not address:
            return errors.SUCCESS
        found = process.addresses.allocation(address)
        if found is None or found.start != address or not isinstance(found.owner, Pages):
            return errors.INVALID_VALUE
        device = process.machine.devices[found.device]
        process.machine.synchronize_device(process.host(), device, "cudaFree", process.site())
        self.managed.forget(found)
        self._give_back(found, found.owner)
        return errors.SUCCESS

    def malloc_async(self, out: int, size: int, stream: int) -> int:
        """As `malloc`: memory of a stream's pool, which is taken from the device all the same."""
        error = self.malloc(out, size, "cudaMallocAsync")
        if not error and size:  # it is there for work that comes behind this on the stream
            self.process.copied(0, word(out), size, self.process.stream(stream), values=False)
        return error

    def tell(self) -> None:
        """At the end: note the lines that took memory again and again, with work in between, and never gave it back."""
        self.managed.close()
        left: dict[tuple[str, int, int], list[Allocation]] = {}
        for allocation in self.process.addresses:
            made = allocation.owner.made if isinstance(allocation.owner, Pages) else None
            if made is not None:
                left.setdefault((made.call, made.site, allocation.device), []).append(allocation)
        for (call, site, device), found in left.items():
            turns = {one.owner.made.rows for one in found if isinstance(one.owner, Pages) and one.owner.made}
            if len(turns) >= LEAKING_TURNS:
                size = sum(one.size for one in found)
                self.process.note("cuda-leak", site, call=call, times=len(found), size_bytes=size, device=device)

    def free_async(self, address: int, stream: int) -> int:
        """Give memory back without a wait."""
        found = self.process.addresses.allocation(address)
        if found is None or found.start != address or not isinstance(found.owner, Pages):
            return errors.INVALID_VALUE
        # As if the next who has it wrote.
        self.process.copied(0, address, found.size, self.process.stream(stream), values=False)
        self.managed.forget(found)
        self._give_back(found, found.owner)
        return errors.SUCCESS

    def _give_back(self, found: Allocation, pages: Pages) -> None:
        driver = self.process.machine.devices[found.device].driver
        self.process.addresses.remove(found.start)
        driver.free(pages.taken)
        driver.note_own(found.size, -1)

    def malloc_host(self, out: int, size: int) -> int:
        """Page-locked memory."""
        if not size:
            put(out, 0)
            return errors.SUCCESS
        pages, name = WholePages(size, -1, 0), f"cudaMallocHost number {next(self._numbers)}"
        self.pinned.add(Allocation(pages.address, size, name, traced=SUPPORTED, owner=pages))
        put(out, pages.address)
        return errors.SUCCESS

    def free_host(self, address: int) -> int:
        """Give page-locked memory back."""
        return errors.SUCCESS if not address or self._unpinned(address) else errors.INVALID_VALUE

    def _unpinned(self, address: int) -> bool:
        found = self.pinned.remove(address)
        if found is not None:
            self.managed.forget(found)
        return found is not None

    def register_host(self, address: int, size: int, flags: int) -> int:
        """Lock pages that the program has."""
        if not address or not size:
            return errors.INVALID_VALUE
        if self.is_pinned(address):
            return errors.ALREADY_REGISTERED
        self.pinned.add(Allocation(address, size, "cudaHostRegister"))
        return errors.SUCCESS

    def unregister_host(self, address: int) -> int:
        """Unlock them."""
        return errors.SUCCESS if self._unpinned(address) else errors.NOT_REGISTERED

    def nothing(self, *_: int) -> int:
        """What has no effect on values, time or memory here."""
        return errors.SUCCESS

    # ------------------------------------------------------------------ copies

    def memcpy(self, destination: int, source: int, size: int, kind: int) -> int:
        """A copy that the host waits for."""
        error = self.memcpy_async(destination, source, size, kind, 0, waits=True)
        if not error and size and (self._on_host(destination) or self._on_host(source)):
            self._wait("cudaMemcpy", self.process.stream(0), source)
        return error

    def _wait(self, call: str, stream: Stream, source: int) -> None:
        """The host waits for a copy: from pageable memory until its bytes are staged, before they arrive (CUDA Runtime
        API, "API synchronization behavior")."""
        process = self.process
        staged = int(self._on_host(source) and not self.is_pinned(source))
        process.machine.synchronize_stream(process.host(), stream, call, process.site(), but_last=staged)

    def memcpy_async(
        self, destination: int, source: int, size: int, kind: int, stream: int, waits: bool = False
    ) -> int:
        """A copy on a stream; its values arrive at once, but the host may not use them before it has waited."""
        process = self.process
        process.begin()
        if not size:
            return errors.SUCCESS
        places = [process.addresses.allocation(address) for address in (source, destination)]
        for address, place in zip((source, destination), places, strict=True):
            if not address or (place is not None and address + size > place.start + place.size):
                return errors.INVALID_VALUE
        if (kind in (TO_DEVICE, BETWEEN) and places[1] is None) or (kind in (TO_HOST, BETWEEN) and places[0] is None):
            return errors.INVALID_VALUE
        found = process.stream(stream)
        self._move(destination, source, size, places)
        devices = [-1 if place is None else place.device for place in places]
        pinned = any(self.is_pinned(address) for address in (source, destination))
        self._submit(devices, size, pinned, found)
        process.copied(source, destination, size, found)
        if max(devices) >= 0 > min(devices) and not pinned:  # staged: pageable memory is free again when it returns
            self._wait("cudaMemcpyAsync", found, source)
        elif pinned and not waits and found.capture is None:
            for address, place, written in zip((source, destination), places, (False, True), strict=True):
                own = self.pinned.allocation(address) if place is None else None
                if own is not None:
                    self._watch(own, address, address + size, written, found)
        return errors.SUCCESS

    def _watch(self, own: Allocation, low: int, high: int, written: bool, stream: Stream) -> None:
        """The host may not use page-locked memory before a copy is over: not write what it reads, nor use what it
        writes."""
        owned = (own.start, own.start + own.size) if isinstance(own.owner, Pages) else (0, 0)  # registered: of others
        first, end = whole_pages(low, high, owned)
        if first < end:
            self.process.watch(("stale-read", "early-overwrite"), [(first, end)], (low, high), written, stream)

    def _move(self, destination: int, source: int, size: int, places: Sequence[Allocation | None]) -> None:
        """The values of a copy; those that nobody has are taken for zeros, and the report says so."""
        known = [place is None or self.process.addresses.has_bytes(place) for place in places]
        if all(known):
            with self.managed.opened([(at, at + size) for at in (destination, source)]):
                ctypes.memmove(destination, source, size)
        elif known[1]:
            ctypes.memset(destination, 0, size)
            self.process.note("assumed-value", self.process.site(), what="copy", value=size)

    def _submit(self, devices: list[int], size: int, pinned: bool, stream: Stream) -> None:
        source, destination = devices
        memory = "Pinned" if pinned else "Pageable"
        if source < 0 <= destination:
            name = f"Memcpy HtoD ({memory} -> Device)"
        elif destination < 0 <= source:
            name = f"Memcpy DtoH (Device -> {memory})"
        elif source < 0:
            return
        else:
            name = "Memcpy DtoD (Device -> Device)"
        process = self.process
        process.machine.copy(process.host(), stream, Signature(name), size, source, destination, pinned, process.site())

    def memset(self, address: int, value: int, size: int) -> int:
        """Fill memory of a device."""
        return self.memset_async(address, value, size, 0)

    def memset_async(self, address: int, value: int, size: int, stream: int) -> int:
        """The same on a stream."""
        process = self.process
        process.begin()
        place = process.addresses.allocation(address)
        if place is None or address + size > place.start + place.size:
            return errors.INVALID_VALUE if size else errors.SUCCESS
        if process.addresses.has_bytes(place):
            with self.managed.opened([(address, address + size)]):
                ctypes.memset(address, value & 0xFF, size)
        machine = process.machine
        cost = machine.price(machine.devices[place.device], Signature("aten::fill_", written_bytes=size))
        found = process.stream(stream)
        machine.launch(process.host(), found, cost, process.site())
        process.copied(0, address, size, found)
        return errors.SUCCESS

    def _on_host(self, address: int) -> bool:
        return self.process.addresses.allocation(address) is None

    def is_pinned(self, address: int) -> bool:
        """Whether an address is in page-locked memory of host code's."""
        return self.pinned.allocation(address) is not None

    def info(self, free: int, total: int) -> int:
        """How much memory the current device has left."""
        self.process.begin()
        said = self.process.machine.devices[self.process.device()].driver.info()
        put(free, said.free)
        put(total, said.total)
        return errors.SUCCESS

    def attributes(self, out: int, address: int) -> int:
        """Where a pointer points to."""
        place = self.process.addresses.allocation(address)
        managed = place is not None and isinstance(place.owner, WholePages)
        kind = MANAGED if managed else DEVICE if place is not None else HOST if self.is_pinned(address) else 0
        put(out, kind, 4)
        put(out + 4, place.device if place is not None else self.process.device() if kind else -2, 4)
        put(out + 8, address if place is not None or kind else 0)
        put(out + 16, address if kind in (HOST, MANAGED) else 0)
        return errors.SUCCESS

    # ------------------------------------------------------------------ variables

    def symbol_address(self, out: int, host: int) -> int:
        """Where a `__device__` variable lies."""
        found = self.modules.variable(host)
        if found is None:
            return errors.INVALID_SYMBOL
        self.use(found)
        put(out, found.address)
        return errors.SUCCESS

    def use(self, found: ptx.Variable) -> None:
        """A module's variable is used: from now on it is memory like any other."""
        if self.process.addresses.allocation(found.address) is None:
            device, owner = self.process.device(), VariableMemory(found.memory)
            self.process.addresses.add(Allocation(found.address, found.size, found.name, device=device, owner=owner))

    def symbol_size(self, out: int, host: int) -> int:
        """How large it is."""
        found = self.modules.variable(host)
        if found is None:
            return errors.INVALID_SYMBOL
        put(out, found.size)
        return errors.SUCCESS
