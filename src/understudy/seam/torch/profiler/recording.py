"""One window of the profiler as it goes on: a mark in PyTorch's own record round each thing that the seam does."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._C._profiler import _RecordFunctionFast as RecordFunction
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from understudy.seam.torch.dispatch import observed
from understudy.seam.torch.dispatch.mode import Dispatch
from understudy.seam.torch.profiler.times import MARK, Mark, Taken
from understudy.seam.torch.state.state import State
from understudy.seam.torch.tags import Tag

POINTER: Callable[[object], int] = torch._C.StorageBase.data_ptr  # type: ignore[attr-defined]


class Recording:
    """One window of the profiler.

    `legacy` is the form that times operators by CUDA events (`use_kineto=False`); `cuda` and `host` are the activities
    that were asked for. `rows` are the machine's first and last row, `off` the numbers of rows at which the collection
    of device work was switched off and on, `host_ns` the modelled time of the window's beginning and end. `memory`
    holds what storages took on devices: (mark, pointer to the values) to what it was;
    `allocated` what each device had allocated at the beginning, in bytes.
    """

    def __init__(self, state: State, legacy: bool, cuda: bool, host: bool) -> None:
        self.state = state
        self.legacy = legacy
        self.cuda = cuda
        self.host = host
        self.marks: list[Mark] = []
        self.memory: dict[tuple[int, int], Taken] = {}
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
        self._mode = next((m for m in _get_current_dispatch_mode_stack() if isinstance(m, Dispatch)), None)
        if self._mode is not None:
            observed.observe(self._mode, self.marked)
        state.observers.join(placed=self._placed, around=self.marked)
        self.rows = (len(state.machine.trace.rows), 0)
        self.host_ns = (state.local.host.now_ns, 0)

    def end(self) -> None:
        """Stop marking."""
        state = self.state
        self._active = False
        self.host_ns = (self.host_ns[0], state.local.host.now_ns)
        self.rows = (self.rows[0], len(state.machine.trace.rows))
        state.observers.leave(placed=self._placed, around=self.marked)
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
        mark = Mark(host.index, host.now_ns, len(rows))
        number = len(self.marks)
        self.marks.append(mark)
        try:
            with RecordFunction(f"{MARK}{number}"):
                return call(*args, **kwargs)
        finally:
            mark.after_ns, mark.last = host.now_ns, len(rows)
            local.marked = False

    def _placed(self, storage: object, index: int, tag: Tag) -> None:
        block = tag.block
        if block is not None and self.marks:
            reserved = self.state.device(index).driver.reserved_bytes
            self.memory[len(self.marks) - 1, POINTER(storage)] = Taken(index, block.size, block.address, reserved)
