"""Refusing what this machine's memory cannot hold, before the CPU tries.

The emulation keeps values in the host's memory, and an operator takes that memory before the emulated allocator hears
of its results. So the size of a large result is found first: of a factory from its arguments, of any other operator
by PyTorch's own meta kernel. That is done only when little is left (`Room.near`), and once for each set of shapes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch

from windtunnel.errors import HostMemoryError
from windtunnel.seam.host_memory import LARGE, Boundless, Room
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.plans.call import Call
from windtunnel.seam.torch.state.core import Core
from windtunnel.seam.torch.state.memory import Memory
from windtunnel.seam.torch.tags import BLANK, disable_torch_function, shape_of, storage_of, tag_of
from windtunnel.trace.units import format_bytes

Tensor = torch.Tensor
EXABYTE = 1 << 60
"""A request from here on is refused before any device is asked (c10/cuda/CUDACachingAllocator.cpp: one_exa_bytes)."""

MANY = LARGE // torch.complex128.itemsize
"""As many elements of any type may be large; fewer are not."""

META = torch.device("meta")
UNKNOWN_TO_META = (NotImplementedError, RuntimeError, ValueError, TypeError, IndexError, AttributeError)
"""What a meta kernel raises where there is none, or where the arguments are wrong: the CPU's own says so better."""


class HostGuard:
    """Stands between the operators of one emulation and the host's memory."""

    def __init__(self, core: Core, memory: Memory, limit: int | None, no_data: bool) -> None:
        self.core = core
        self.memory = memory
        self.room = Boundless() if no_data else Room(self._taken, limit)
        self._sizes: dict[object, int] = {}

    def _taken(self) -> int:
        """The bytes of this process's live tensors on all emulated devices, unwritten ones included."""
        for device in self.core.machine.devices:
            self.core.drain(device)
        return sum(device.allocator.memory_allocated() for device in self.core.machine.devices)

    def placed(self, index: int, size: int) -> None:
        """So much was made since the last look that another is due; refuses when nothing is left."""
        if self.room.look() < 0:
            raise self._error(index, size)

    def before(self, call: Call) -> None:
        """Refuse an operator on a device whose results the host cannot hold; asked while little is left."""
        size = self._fresh(call) + self._written(call)
        if size >= LARGE:
            self.asked(call.device, size)

    def asked(self, index: int, size: int) -> None:
        """Refuse a large result that the host cannot hold."""
        if size > self.room.left and size > self.room.look():
            raise self.refusal(index, size)

    def refusal(self, index: int, size: int) -> HostMemoryError:
        """The error for a result that the host cannot hold; raises the card's own where the card cannot either.

        Programs know how to answer a card's out of memory, so that comes first.
        """
        device = self.core.machine.devices[index]
        block = self.memory.take(device, size, self.core.local.streams[index].index)
        if block is not None:
            device.allocator.free(block)
        return self._error(index, size)

    def expect(self, index: int, count: int, dtype: torch.dtype | None, *, empty: bool) -> None:
        """Refuse `count` elements that no GPU of this model can hold, or whose values (unless `empty`) no host can.

        Fewer than `MANY` need not be asked about.
        """
        needed = count * (dtype or torch.get_default_dtype()).itemsize
        device = self.core.machine.devices[index]
        if needed >= EXABYTE:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate more than 1EB memory.")
        if needed > device.driver.total_bytes and not device.driver.overcommitted:
            self.memory.take(device, needed, self.core.local.streams[index].index)
        if needed >= LARGE and not empty:
            self.asked(index, needed)

    def made_empty(self, out: object) -> None:
        """Memory was made of which no page is written yet."""
        for tensor in tensors_in((out,)):
            tag = tag_of(tensor)
            tag.blank = BLANK
            if tag.size >= LARGE:
                self.room.untouched[tag] = tag.size

    def _written(self, call: Call) -> int:
        """The bytes of untouched pages that an operator is about to write."""
        size = 0
        if self.room.untouched:
            for tensor in tensors_in(call.args[position] for position in call.plan.mutated):
                tag = tag_of(tensor)
                if tag in self.room.untouched:
                    written = min(tag.size, tensor.numel() * tensor.element_size())
                    size += written
                    if written >= tag.size:
                        del self.room.untouched[tag]
        return size

    def _fresh(self, call: Call) -> int:
        """The bytes of an operator's new tensors; of `empty` none."""
        plan = call.plan
        if plan.view or plan.empty or not plan.fresh:
            return 0
        if any(tensor.is_nested or tensor.layout is not torch.strided for tensor in call.tensors()):
            return 0  # their sizes are decided by values; what they take is seen afterwards
        key = plan, _shapes(call.args), _shapes(tuple(call.kwargs.values()))
        size = self._sizes.get(key)
        if size is None:
            size = self._sizes[key] = self._by_meta(call)
        return size

    def _by_meta(self, call: Call) -> int:
        local = self.core.local
        before, local.inner = local.inner, True
        given = {name: _to_meta(value) for name, value in call.kwargs.items()}
        if call.plan.factory or "device" in given:
            given["device"] = META
        try:
            with disable_torch_function():
                out = call.plan.func(*map(_to_meta, call.args), **given)
        except UNKNOWN_TO_META:
            return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(call.args))
        finally:
            local.inner = before
        return sum(storage_of(tensor).nbytes() for tensor in tensors_in((out,)))

    def _error(self, index: int, size: int) -> HostMemoryError:
        core, room = self.core, self.room
        site = core.machine.trace.sites[core.site()]
        if room.by_limit():
            reason, advice = f"--host-memory-limit {format_bytes(room.limit or 0)} leaves no room for them", "raise"
        else:
            reason, advice = f"this machine has {format_bytes(room.available())} of memory left for everything", "set"
        return HostMemoryError(
            f"{site} makes {format_bytes(size)} of values for emulated GPU {index}, and {reason}: rehearse without "
            f"values (--no-data), make the data smaller, or {advice} --host-memory-limit"
        )


def _shapes(values: Iterable[object]) -> tuple[object, ...]:
    """What an operator's arguments say of its results' sizes, as a key."""
    found: list[Hashable] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append((shape_of(value), value.stride(), value.dtype))
        elif isinstance(value, (list, tuple)):
            found.append(_shapes(value))
        else:
            found.append(None if isinstance(value, torch.Generator) else value)
    return tuple(found)


def _to_meta(value: object) -> object:
    """An argument without values; the copy to meta draws nothing and copies nothing."""
    if isinstance(value, Tensor):
        return torch.ops.aten.empty_strided.default(shape_of(value), value.stride(), dtype=value.dtype, device=META)
    if isinstance(value, (list, tuple)):
        return type(value)(_to_meta(item) for item in value)
    return None if isinstance(value, torch.Generator) else value
