"""One window of the profiler as it goes on: a mark in PyTorch's own record round each thing that the seam does."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch._C._profiler import _RecordFunctionFast as RecordFunction
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from windtunnel.machine.device import Device
from windtunnel.machine.memory.blocks import Block
from windtunnel.seam.living import living
from windtunnel.seam.torch.dispatch import observed
from windtunnel.seam.torch.dispatch.mode import Dispatch
from windtunnel.seam.torch.plans.arguments import tensors_in
from windtunnel.seam.torch.profiler.times import MARK, Death, FailedRequest, SeamMark, Taken
from windtunnel.seam.torch.state.state import State
from windtunnel.seam.torch.tags import Tag, storage_of, tag_of

POINTER: Callable[[object], int] = torch._C.StorageBase.data_ptr  # type: ignore[attr-defined]


class Recording:
    """One window of the profiler.

    `legacy` is the form that times operators by CUDA events (`use_kineto=False`); `cuda` and `host` are the activities
    that were asked for. `rows` are the machine's first and last row, `off` the numbers of rows at which the collection
    of device work was switched off and on, `host_ns` the modelled time of the window's beginning and end. `memory`
    holds what storages took on devices: (mark, pointer to the values) to what it was;
    `before` does of those that had it already, `allocated` what each device had allocated then, in bytes. Where memory
    is recorded (`of_memory`), `deaths` are the ends of such storages, of which PyTorch's own record has nothing,
    and `failures` the requests for memory that could not be served.
    """

    def __init__(self, state: State, legacy: bool, cuda: bool, host: bool, memory: bool) -> None:
        self.state = state
        self.legacy = legacy
        self.cuda = cuda
        self.host = host
        self.of_memory = memory
        self.synchronizations = False
        self.marks: list[SeamMark] = []
        self.memory: dict[tuple[int, int], Taken] = {}
        self.before: dict[int, Taken] = {}
        self.deaths: list[Death] = []
        self.failures: list[FailedRequest] = []
        self._addresses: set[int] = set()
        self.allocated: list[int] = []
        self.off: list[int] = []
        self.rows = (0, 0)
        self.host_ns = (0, 0)
        self.thread = state.local.host.index
        self._mode: Dispatch | None = None
        self._active = False

    def begin(self) -> None:
        """From now on mark what the seam does on this thread."""
        state = self.state
        self._active = True
        for device in state.machine.devices:
            state.drain(device)
            self.allocated.append(device.allocator.memory_allocated())
        for tensor in living(torch.Tensor):
            tag = tag_of(tensor)
            if tag.device >= 0:
                self._known(tensor, tag)
        self._mode = next((m for m in _get_current_dispatch_mode_stack() if isinstance(m, Dispatch)), None)
        if self._mode is not None:
            observed.observe(self._mode, self.marked)
        state.observers.profiled += 1
        state.memory.observers.append(self._failed)
        state.observers.join(placed=self._placed, died=self._died if self.of_memory else None, around=self.marked)
        self.rows = (len(state.machine.trace.rows), 0)
        self.host_ns = (state.local.host.now_ns, 0)

    def end(self) -> None:
        """Stop marking."""
        state = self.state
        self._active = False
        self.host_ns = (self.host_ns[0], state.local.host.now_ns)
        self.rows = (self.rows[0], len(state.machine.trace.rows))
        state.observers.profiled -= 1
        state.memory.observers.remove(self._failed)
        state.observers.leave(placed=self._placed, died=self._died if self.of_memory else None, around=self.marked)
        if self._mode is not None:
            observed.leave(self._mode)

    def toggle(self, on: bool) -> None:
        """Switch the collection of device work off or on."""
        if on == bool(len(self.off) % 2):
            self.off.append(len(self.state.machine.trace.rows))

    def marked(self, call: Callable[..., object], *args: object, **kwargs: object) -> object:
        """Do something of the emulation between two marks; what it does inside needs none of its own."""
        local = self.state.local
        if not self._active or local.marked:
            return call(*args, **kwargs)
        local.marked = True
        rows, host = self.state.machine.trace.rows, local.host
        mark = SeamMark(host.index, host.now_ns, len(rows))
        number = len(self.marks)
        self.marks.append(mark)
        schema = getattr(args[0], "_schema", None) if args else None
        if schema is not None:
            mark.name = schema.name
            self._look(mark, args[2], args[3])
        try:
            with RecordFunction(f"{MARK}{number}"):
                return call(*args, **kwargs)
        finally:
            mark.after_ns, mark.last = host.now_ns, len(rows)
            mark.on_device = mark.on_device or mark.last > mark.first
            local.marked = False

    def _look(self, mark: SeamMark, args: object, kwargs: object) -> None:
        """See whether an operator has a tensor on a device, and which."""
        given = args, list(kwargs.values()) if isinstance(kwargs, dict) else ()
        for tensor in tensors_in(given):
            tag = tag_of(tensor)
            if tag.device >= 0:
                mark.on_device = True
                self._known(tensor, tag)

    def _known(self, tensor: torch.Tensor, tag: Tag) -> None:
        """Remember a tensor on a device that was there before the window; it may have no memory, or no storage."""
        if not isinstance(tag.block, Block) or tensor.layout != torch.strided:
            return
        try:
            pointer = POINTER(storage_of(tensor))
        except (NotImplementedError, RuntimeError):
            return
        self.before.setdefault(pointer, Taken(tag.device, tag.block.size, tag.block.address, 0))

    def _placed(self, storage: object, index: int, tag: Tag) -> None:
        block = tag.block
        if block is not None:
            self._addresses.add(block.address)
        if block is not None and self.marks:
            reserved = self.state.device(index).driver.reserved_bytes
            self.marks[-1].on_device = True
            self.memory[len(self.marks) - 1, POINTER(storage)] = Taken(index, block.size, block.address, reserved)

    def _failed(self, device: int, size: int, total: int, free: int) -> None:
        allocator = self.state.device(device).allocator
        held = allocator.memory_allocated(), allocator.memory_reserved()
        self.failures.append(FailedRequest(self.state.local.host.now_ns, device, size, *held))

    def _died(self, device: Device, block: Block) -> None:
        if block.address in self._addresses:
            self._addresses.discard(block.address)
        else:
            taken = Taken(device.index, block.size, block.address, device.driver.reserved_bytes)
            self.deaths.append(Death(time.time_ns(), taken))
