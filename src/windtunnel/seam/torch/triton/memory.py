"""What a launch of a Triton kernel may touch, and what it touches: memory by pointer argument, byte by byte.

A kernel computes with the addresses of the emulated device. Above bit 48 of each stands which pointer argument it came
from, so that an access that has left its argument's memory is seen even where other memory lies there. CUDA's addresses
have 47 bits (CUDA C++ Programming Guide, "Unified Virtual Address Space").

Memory traffic is counted in sectors of 32 bytes, the smallest piece that a GPU's L2 cache fetches (Nsight Compute's
documentation, "Memory Tables").
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SECTOR = 32
SECTOR_BITS = 5
NUMBER_BITS = 48
LOW = (1 << NUMBER_BITS) - 1
EPOCH_BITS = 24
NOBODY = -1

OUT_OF_BOUNDS = "triton-out-of-bounds"
UNINITIALIZED = "triton-uninitialized"
CONFLICT = "triton-write-conflict"

Pointers = NDArray[np.uint64]
Offsets = NDArray[np.int64]
Mask = NDArray[np.bool_]
Bytes = NDArray[np.uint8]


class Violation(NamedTuple):
    """What a kernel did wrong with memory: `code` is the check's, `line` of the kernel's source, `found` in words."""

    code: str
    line: tuple[str, int, str]
    argument: str
    access: str
    found: str
    severe: bool = True

    def sentence(self, kernel: str) -> str:
        """All of it."""
        file, line, _ = self.line
        return f"{self.access} by the Triton kernel {kernel!r}, {file}:{line}: {self.argument!r}, {self.found}"


class IllegalAddressError(Exception):
    """A kernel touched memory that is not mapped on the device: the context is lost."""


class AssertedError(Exception):
    """A kernel's `device_assert` failed: the context is lost. `line` is the kernel's."""

    def __init__(self, message: str, line: tuple[str, int, str]) -> None:
        super().__init__(message)
        self.line = line


class Region:
    """One storage as a launch sees it: where it lies, and which of it is read, written and by which program.

    `base` is its address on the device, `host` that of its bytes here (0 without data). `blank` marks bytes that nobody
    wrote (1), or is None where all are written.
    """

    def __init__(self, storage: object, base: int, size: int, host: int, blank: Bytes | None) -> None:
        self.storage = storage
        self.base = base
        self.size = size
        self.host = host
        self.blank = blank
        self.read = np.zeros(-(-size // SECTOR), dtype=np.bool_)
        self.written = np.zeros(-(-size // SECTOR), dtype=np.bool_)
        self.reads: tuple[int, int] | None = None
        self.writes: tuple[int, int] | None = None
        self._writers: dict[bool, NDArray[np.int64]] = {}
        self._unit = 0

    def bytes(self) -> Bytes:
        """The values as they are now."""
        return np.frombuffer(memoryview((ctypes.c_uint8 * self.size).from_address(self.host)), dtype=np.uint8)

    def writers(self, item: int, aligned: bool) -> tuple[dict[bool, NDArray[np.int64]], int]:
        """Which program wrote each unit of this memory last, with its epoch, and the bytes of a unit.

        By atomics (True) and by plain stores (False), as far as there are some.
        """
        if not self._unit:
            self._unit = item if aligned else 1
        elif self._unit != 1 and (item != self._unit or not aligned):
            self._writers = {atomic: np.repeat(known, self._unit) for atomic, known in self._writers.items()}
            self._unit = 1
        return self._writers, self._unit


class Argument(NamedTuple):
    """A pointer that the kernel was given."""

    name: str
    region: Region


def _units(offsets: Offsets, item: int, unit: int) -> Offsets:
    """The units that accesses of `item` bytes at these offsets cover."""
    if unit == item:
        return offsets // unit
    return (offsets[:, None] + np.arange(item, dtype=np.int64)).reshape(-1)


def _sectors(offsets: Offsets) -> Offsets:
    """The sectors of these offsets, each once."""
    sectors = offsets >> SECTOR_BITS
    if sectors.size > 1:
        kept = np.empty(sectors.size, dtype=np.bool_)
        kept[0] = True
        np.not_equal(sectors[1:], sectors[:-1], out=kept[1:])
        sectors = np.unique(sectors[kept])
    return sectors


class LaunchMemory:
    """The memory of one launch.

    `program` is the number of the one that runs now. `line` says which line of the kernel runs. `find` gives the region
    at an address that no argument points into (a pointer that the kernel read from memory), or None. `mapped` says
    whether an address belongs to memory of the device at all.
    """

    def __init__(
        self,
        line: Callable[[], tuple[str, int, str]],
        find: Callable[[int], Region | None],
        mapped: Callable[[int], bool],
    ) -> None:
        self._line = line
        self._find = find
        self._mapped = mapped
        self.arguments: list[Argument] = []
        self.regions: dict[int, Region] = {}
        self.violations: dict[tuple[str, tuple[str, int, str], str], Violation] = {}
        self.program = 0
        self.programs = 1
        self.dry = False
        self.host = True  # whether there are values
        self.lost = False  # whether it left the device's memory
        self.asserted: AssertedError | None = None
        self.read_bytes = self.written_bytes = 0  # of sectors, as often as instructions ask for them
        self._epoch = 0
        self._known: NDArray[np.int64] | None = None
        self._released: dict[int, NDArray[np.int64]] = {}
        self.unwritten: tuple[Mask, Callable[[], None]] | None = None
        """The lanes of the last load that nobody has written, and what reports it."""

    # ------------------------------------------------------------------ pointers

    def pointer(self, name: str, region: Region, offset: int) -> int:
        """A pointer for the kernel: `offset` bytes into a region, marked as argument `name`'s."""
        self.arguments.append(Argument(name, region))
        return (len(self.arguments) << NUMBER_BITS) + region.base + offset

    def load(self, pointers: Pointers, mask: Mask, item: int) -> tuple[Pointers, Mask]:
        """Where on this machine a kernel's load reads, and which of its lanes may."""
        return self._touch(pointers, mask, item, "load")

    def store(self, pointers: Pointers, mask: Mask, item: int, values: Bytes | None) -> tuple[Pointers, Mask]:
        """The same for a store; `values` are the bytes of all its lanes."""
        return self._touch(pointers, mask, item, "store", values)

    def atomic(self, pointers: Pointers, mask: Mask, item: int, reads: bool) -> tuple[Pointers, Mask]:
        """The same for an atomic, which reads (or only exchanges) and writes."""
        return self._touch(pointers, mask, item, "atomic" if reads else "exchange")

    def _touch(
        self, pointers: Pointers, mask: Mask, item: int, access: str, values: Bytes | None = None
    ) -> tuple[Pointers, Mask]:
        mask = np.broadcast_to(mask, pointers.shape)
        numbers = pointers[mask] >> np.uint64(NUMBER_BITS)
        if not numbers.size:
            return pointers, mask
        first = int(numbers[0])
        if first and bool((numbers == first).all()):
            known = self.arguments[first - 1] if first <= len(self.arguments) else None
            return self._within(known, first, pointers, mask, item, access, values)
        physical, allowed = pointers.copy(), np.zeros(pointers.shape, dtype=np.bool_)
        for number in np.unique(numbers):
            part = mask & (pointers >> np.uint64(NUMBER_BITS) == number)
            if 0 < number <= len(self.arguments):
                known = self.arguments[int(number) - 1]
                found, live = self._within(known, int(number), pointers, part, item, access, values)
                physical[part], allowed[part] = found[part], live[part]
                continue
            for argument, those in self._elsewhere(pointers, part):
                found, live = self._within(argument, int(number), pointers, those, item, access, values)
                physical[those], allowed[those] = found[those], live[those]
        return physical, allowed

    def _elsewhere(self, pointers: Pointers, mask: Mask) -> Iterator[tuple[Argument | None, Mask]]:
        """Pointers that are no argument's, by the memory that they point into."""
        left = mask.copy()
        while left.any():
            address = int(pointers[left][0])
            region = next((r for r in self.regions.values() if r.base <= address < r.base + r.size), None)
            region = region or self._find(address)
            if region is None:
                those = left & (pointers == np.uint64(address))
                yield None, those
            else:
                low, high = np.uint64(region.base), np.uint64(region.base + region.size)
                those = left & (pointers >= low) & (pointers < high)
                yield Argument("a pointer that the kernel made or read", region), those
            left &= ~those

    def _within(
        self,
        argument: Argument | None,
        number: int,
        pointers: Pointers,
        mask: Mask,
        item: int,
        access: str,
        values: Bytes | None,
    ) -> tuple[Pointers, Mask]:
        """Check and count what one argument's pointers touch."""
        if argument is None:
            self._outside("a pointer of no argument", pointers[mask].astype(np.int64) & LOW, item, access, None)
            return pointers, np.zeros(pointers.shape, dtype=np.bool_)
        region = argument.region
        start = (number << NUMBER_BITS) + region.base
        offsets = (pointers[mask] - np.uint64(start)).astype(np.int64)
        if int(offsets.min()) < 0 or int(offsets.max()) + item > region.size:
            inside = (offsets >= 0) & (offsets + item <= region.size)
            self._outside(argument.name, offsets[~inside], item, access, region)
            mask = mask.copy()
            mask[mask] = inside
            offsets = offsets[inside]
            if not offsets.size:
                return pointers, mask
        reads, writes = access != "store", access != "load"
        sectors = _sectors(offsets)
        low, high = int(offsets.min()), int(offsets.max()) + item
        if reads:
            self.read_bytes += SECTOR * sectors.size
            region.read[sectors] = True
            region.reads = _hull(region.reads, low, high)
            if region.blank is not None and access != "exchange":
                self._initialized(argument, offsets, item, access, mask)
        if writes:
            self.written_bytes += SECTOR * sectors.size
            region.written[sectors] = True
            if not self.dry:
                region.writes = _hull(region.writes, low, high)
                self._alone(argument, offsets, item, access, None if values is None else _chosen(values, mask, item))
                if region.blank is not None:
                    region.blank[_units(offsets, item, 1)] = 0
        shift = (region.host - start) % (1 << 64)
        return pointers + np.uint64(shift), mask

    # ------------------------------------------------------------------ what is wrong

    def _report(
        self, code: str, argument: str, access: str, found: str, severe: bool = True,
        line: tuple[str, int, str] | None = None,
    ) -> None:  # fmt: skip
        line = line or self._line()
        known = self.violations.get((code, line, argument))
        if known is None or severe > known.severe:
            self.violations[code, line, argument] = Violation(code, line, argument, access, found, severe)

    def _outside(self, argument: str, offsets: Offsets, item: int, access: str, region: Region | None) -> None:
        """An access out of bounds; CUDA notices only where no memory is mapped."""
        worst = int(offsets.min()) if int(offsets.min()) < 0 else int(offsets.max())
        base = 0 if region is None else region.base
        place = f"at byte {worst} of an allocation of {region.size}" if region else f"at address {worst:#x}"
        self._report(OUT_OF_BOUNDS, argument, access, f"{item} bytes {place}, in program {self.program}")
        if not all(self._mapped(base + int(offset)) for offset in (offsets.min(), offsets.max())):
            self.lost = True
            raise IllegalAddressError

    def _initialized(self, argument: Argument, offsets: Offsets, item: int, access: str, mask: Mask) -> None:
        """What nobody has written: an atomic uses it, a load's result may be left alone."""
        blank = argument.region.blank
        assert blank is not None
        fresh = blank[_units(offsets, item, 1)] if item == 1 else blank[offsets] | blank[offsets + item - 1]
        if fresh.any():
            which = fresh.reshape(len(offsets), -1).any(axis=1)
            at = int(offsets[int(which.argmax())])
            found = f"{item} bytes at byte {at}, in program {self.program}"
            if access != "load":
                self._report(UNINITIALIZED, argument.name, access, found)
                return
            lanes, line = np.zeros(mask.shape, dtype=np.bool_), self._line()
            lanes[mask] = which
            self.unwritten = lanes, partial(self._report, UNINITIALIZED, argument.name, access, found, True, line)

    def _alone(self, argument: Argument, offsets: Offsets, item: int, access: str, values: Bytes | None) -> None:
        """Whether no other program of the grid wrote the same place, but for those that this one is ordered after.

        Atomics may meet each other, and no plain store.
        """
        region, atomic = argument.region, access != "store"
        writers, unit = region.writers(item, not (offsets % item).any())
        units = _units(offsets, item, unit)
        for how, known in writers.items():
            if not (how and atomic):
                self._meet(argument, known[units], units, unit, item, access, None if how else values)
        if atomic not in writers:
            writers[atomic] = np.full(-(-region.size // unit), NOBODY, dtype=np.int64)
        writers[atomic][units] = (self.program << EPOCH_BITS) + self._epoch

    def _meet(
        self,
        argument: Argument,
        before: NDArray[np.int64],
        units: Offsets,
        unit: int,
        item: int,
        access: str,
        values: Bytes | None,
    ) -> None:
        """Report where others wrote (`before`) what this program writes now, and are not known to be done."""
        region = argument.region
        other = (before != NOBODY) & (before >> EPOCH_BITS != self.program)
        if other.any() and self._known is not None:
            owner, epoch = before >> EPOCH_BITS, before & ((1 << EPOCH_BITS) - 1)
            other &= self._known[np.where(other, owner, 0)] <= epoch
        if other.any():
            first = int(other.argmax())
            at = int(units[first]) * unit
            changed = self._changed(region, units[other], unit, values, other, item)
            self._report(
                CONFLICT, argument.name, access,
                f"byte {at} is written by programs {int(before[first]) >> EPOCH_BITS} and {self.program}"
                + ("" if changed else ", with the same value"),
                changed,
            )  # fmt: skip

    @staticmethod
    def _changed(region: Region, units: Offsets, unit: int, values: Bytes | None, where: Mask, item: int) -> bool:
        """Whether a second write changes what the first one left."""
        if values is None or not region.host:
            return True
        now = region.bytes()[_units(units * unit, unit, 1)].reshape(-1, unit)
        new = values.reshape(-1, item).reshape(-1, unit)[where]
        return bool((now != new).any())

    # ------------------------------------------------------------------ order between programs

    def acquire(self, address: int) -> None:
        """This program comes after what others did before they released `address` (a scalar atomic)."""
        released = self._released.get(address)
        if released is not None:
            if self._known is None:
                self._known = np.zeros(self.programs, dtype=np.int64)
            np.maximum(self._known, released, out=self._known)

    def release(self, address: int) -> None:
        """What this program did so far is known to whoever acquires `address`."""
        known = self._released.setdefault(address, np.zeros(self.programs, dtype=np.int64))
        if self._known is not None:
            np.maximum(known, self._known, out=known)
        self._epoch += 1
        known[self.program] = self._epoch

    def begin(self, program: int) -> None:
        """The next program of the grid runs."""
        self.program, self._epoch, self._known = program, 0, None

    # ------------------------------------------------------------------ totals

    def unique(self) -> tuple[int, int]:
        """(bytes read, bytes written) in sectors of memory, each counted once."""
        regions = self.regions.values()
        return (
            SECTOR * sum(int(np.count_nonzero(region.read)) for region in regions),
            SECTOR * sum(int(np.count_nonzero(region.written)) for region in regions),
        )


def _hull(known: tuple[int, int] | None, low: int, high: int) -> tuple[int, int]:
    return (low, high) if known is None else (min(known[0], low), max(known[1], high))


def _chosen(values: Bytes, mask: Mask, item: int) -> Bytes:
    """The bytes of the lanes that store."""
    return values.reshape(-1, item)[mask.reshape(-1)]
