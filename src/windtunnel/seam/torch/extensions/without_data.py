"""Launches of CUDA kernels in a rehearsal without data: some of their blocks run, on zeros and on what is known.

What a kernel does mostly follows from its arguments alone. Where a value from memory decides, the line is an
assumption in the report.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import replace

import torch

from windtunnel import ptx
from windtunnel.errors import UnsupportedError
from windtunnel.seam.cuda_runtime.addresses import AddressMap, Allocation
from windtunnel.seam.cuda_runtime.driver import registers_of
from windtunnel.seam.cuda_runtime.limits import LaunchShape, together
from windtunnel.seam.cuda_runtime.modules import KernelFunction
from windtunnel.seam.cuda_runtime.names import demangled
from windtunnel.seam.torch.extensions.counted import LastCounts, absolute, relative
from windtunnel.seam.torch.extensions.tensors import TensorAddresses, has_bytes
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import Storage

Key = tuple[object, ...]
APART = 1 << 26
"""Bytes around each memory that belong to none: what leaves one does not get into the next."""
Absent = tuple[Allocation, Storage]


class StandIns(AddressMap):
    """Zeros in the place of the memory of tensors that have no values, for one launch."""

    def __init__(self, addresses: TensorAddresses, absent: Sequence[Absent]) -> None:
        super().__init__()
        self.told = False  # whether any value is known
        self._addresses = addresses
        self._kept: list[object] = []
        self._from: dict[int, int] = {}
        self._to: dict[int, int] = {}
        for known in addresses.allocations():
            if all(known.start != one.start for one, _ in absent):
                self.add(known)
        for known, storage in absent:
            memory = ptx.zeroed(known.size + 2 * APART)
            view = (ctypes.c_char * len(memory)).from_buffer(memory)
            start = ctypes.addressof(view) + APART
            self._kept += [memory, view]
            self._from[start], self._to[known.start] = known.start, start
            self.add(Allocation(start, known.size, known.name, device=known.device, owner=known.owner))
            values: torch.Tensor | None = getattr(storage, "_wt_values", None)
            if values is not None:
                self.told = True
                ctypes.memmove(start, values.data_ptr(), min(known.size, values.numel() * values.element_size()))

    def here(self, address: int, start: int) -> int:
        """Where an address of the memory that begins at `start` lies in this launch."""
        return self._to.get(start, start) + address - start

    def mapped(self, address: int) -> bool:
        """Whether a device has memory there in the program."""
        near = self.before(address)
        return near is not None and self._addresses.mapped(
            address + self._from.get(near.start, near.start) - near.start
        )

    def original(self, touched: ptx.TouchedRange) -> ptx.TouchedRange:
        """What a launch touched, as addresses of the program's."""
        start = self._from.get(touched.start, touched.start)
        return touched.moved(start, start - touched.start)


class Rehearsed:
    """Launches of one emulation that have no values."""

    def __init__(self, state: State, addresses: TensorAddresses) -> None:
        self.state = state
        self.addresses = addresses
        self._done: dict[Key, ptx.Launch] = {}
        self._counts = LastCounts()
        self._seen: set[int] = set()  # where memory begins of which it has been said

    def overwritten(self, address: int) -> None:
        """Host code wrote there."""
        known = self.addresses.allocation(address) if self.state.no_data else None
        storage = None if known is None else self.addresses.storage(known)
        if storage is not None:
            self.state.assumptions.wrote(storage)

    def absent(self, pointers: Sequence[Allocation]) -> list[Absent]:
        """Those of a launch's memories that have no values."""
        if not self.state.no_data:
            return []
        pairs = [(known, self.addresses.storage(known)) for known in pointers]
        return [(known, one) for known, one in pairs if one is not None and not has_bytes(one)]

    def compute(
        self, function: KernelFunction, shape: LaunchShape, arguments: bytes, words: Sequence[tuple[int, int]],
        absent: Sequence[Absent], device: int,
    ) -> ptx.Launch:  # fmt: skip
        """What a launch does, as far as it follows from its arguments.

        Raises:
            UnsupportedError: with zeros it ends in an error, and a value decides that.
        """
        kernel = function.kernel
        rest, given = self._key(shape, arguments, words), bytearray(arguments)
        key, starts = (function.binary, function.name, *rest), self._starts(words)
        told = any(getattr(storage, "_wt_values", None) is not None for _, storage in absent)
        counted = self._counts.of(function, rest) if kernel.deciding and not told else None
        if counted is not None:
            name = demangled(function.name)
            self.state.assumptions.note("counted", name=name, place=name)
            result = absolute(counted, starts)
            self._written(function, result, absent)
            return result
        self._assume(function)
        memory = StandIns(self.addresses, absent)
        if key in self._done and not memory.told:
            result = absolute(self._done[key], starts)
            self._written(function, result, absent)
            return result
        for offset, address in words:
            known = self.addresses.allocation(address)
            if known is not None:
                struct.pack_into("<Q", given, offset, memory.here(address, known.start))
        result = kernel.launch(
            shape.grid, shape.block, shape.shared_bytes, bytes(given), memory=memory,
            checks="none" if self.state.check_kernels == "none" else "sample", output=_silent,
            cooperative=shape.cooperative, sampled=True,
            most_resident=together(
                shape, kernel.shared_bytes, registers_of(kernel), self.state.machine.devices[device].gpu
            ),
        )  # fmt: skip
        if kernel.deciding:
            self._refuse(function, result)
            result = replace(result, faults=(), trap=None)
        result = replace(result, accesses=tuple(memory.original(one) for one in result.accesses))
        self._written(function, result, absent)
        if not memory.told:
            self._done[key] = relative(result, starts)
        return result

    def _written(self, function: KernelFunction, result: ptx.Launch, absent: Sequence[Absent]) -> None:
        """Nothing is known any more of what it wrote; memory of host code's has values, and has not got all of them."""
        unknown = {known.start: storage for known, storage in absent}
        for touched in result.accesses:
            if not touched.written:
                continue
            if touched.start in unknown:
                self.state.assumptions.wrote(unknown[touched.start])
            elif touched.start not in self._seen:
                self._seen.add(touched.start)
                self.state.assumptions.note("written", name=demangled(function.name))

    def _starts(self, words: Sequence[tuple[int, int]]) -> dict[int, int]:
        """Where the memory begins that each word of the arguments points to."""
        found = {offset: self.addresses.allocation(address) for offset, address in words}
        return {offset: known.start for offset, known in found.items() if known is not None}

    def counted(
        self, function: KernelFunction, shape: LaunchShape, arguments: bytes, words: Sequence[tuple[int, int]],
        launch: ptx.Launch,
    ) -> None:  # fmt: skip
        """A launch with data: what it did is what a rehearsal cannot know where values decide."""
        if function.kernel.deciding and launch.trap is None:
            self._counts.keep(function, self._key(shape, arguments, words), relative(launch, self._starts(words)))

    def _key(self, shape: LaunchShape, arguments: bytes, words: Sequence[tuple[int, int]]) -> Key:
        """What a launch without values follows from, beside its kernel: pointers by their place in memory of a size."""
        rest, places = bytearray(arguments), []
        for offset, address in words:
            known = self.addresses.allocation(address)
            if known is not None:
                struct.pack_into("<Q", rest, offset, 0)
                places.append((offset, known.size, address - known.start))
        return tuple(shape), bytes(rest), tuple(places)

    def _assume(self, function: KernelFunction) -> None:
        for file, line in function.kernel.deciding:
            self.state.assumptions.note("kernel", name=demangled(function.name), place=f"{file}:{line}")

    def _refuse(self, function: KernelFunction, result: ptx.Launch) -> None:
        if result.trap is None:
            return
        file, line = function.kernel.deciding[0]
        raise UnsupportedError(
            f"the CUDA kernel {demangled(function.name)!r} needs values to run on ({file}:{line} asks for one), and a "
            "rehearsal without data has none: run it with data"
        )


def _silent(text: str) -> None:
    """What a kernel prints of values that are none."""
