"""`torch.profiler` with CUDA activity: PyTorch's own profiler on the host, the machine's rows for the devices.

The profiler runs as on a CPU build and sees every operator, range and Python function in real time. Marks in its own
record, one round each thing that the seam does, tie its clock to the modelled one: `profiler_events` and
`profiler_chrome` then move what the host did to modelled time, leave out what the emulation did inside an operator, and
add runtime calls, kernels and copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.profiler as autograd_profiler
from torch._C._profiler import ProfilerActivity, ProfilerState
from torch._C._profiler import _RecordFunctionFast as RecordFunction
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from understudy.seam.patching import Patch
from understudy.seam.torch.dispatch.mode import Dispatch
from understudy.seam.torch.profiler.events import Result
from understudy.seam.torch.profiler.times import MARK, Mark, Taken
from understudy.seam.torch.state.state import State

VERBS = (
    "launch", "copy", "collective", "busy", "barrier", "record", "wait_event", "query_event", "query_stream",
    "synchronize_event", "synchronize_stream", "synchronize_device",
)  # fmt: skip
"""What the machine can be asked to do outside an operator."""


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
        self._kind: type[Dispatch] = Dispatch
        self._active = False
        self._place: Any = None  # what another listener had put there

    def begin(self) -> None:
        """From now on mark what the seam does on this thread."""
        state = self.state
        self._active = True
        for device in state.machine.devices:
            state.drain(device)
            stats: Any = device.allocator.memory_stats()
            self.allocated.append(stats["allocated_bytes"]["all"]["current"])
        for mode in _get_current_dispatch_mode_stack():
            if isinstance(mode, Dispatch):
                self._mode, self._kind = mode, type(mode)
                mode.__class__ = _profiled(self, self._kind)
        for name in VERBS:
            setattr(state.machine, name, self._marking(getattr(state.machine, name)))
        self._place = vars(state).get("place")
        vars(state)["place"] = self._placing(state.place)
        self.rows = (len(state.machine.trace.rows), 0)
        self.host_ns = (state.local.host.now_ns, 0)

    def end(self) -> None:
        """Stop marking."""
        state = self.state
        self._active = False
        self.host_ns = (self.host_ns[0], state.local.host.now_ns)
        self.rows = (self.rows[0], len(state.machine.trace.rows))
        for name in VERBS:
            vars(state.machine).pop(name)
        vars(state).pop("place")
        if self._place is not None:
            vars(state)["place"] = self._place
        if self._mode is not None:
            self._mode.__class__ = self._kind

    def toggle(self, on: bool) -> None:
        """Switch the collection of device work off or on."""
        if on == bool(len(self.off) % 2):
            self.off.append(len(self.state.machine.trace.rows))

    def marked(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
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

    def _marking(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.marked(verb, *args, **kwargs)

    def _placing(self, place: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
        pointer: Callable[[Any], int] = torch._C.StorageBase.data_ptr  # type: ignore[attr-defined]

        def placed(storage: Any, index: int) -> Any:
            tag = place(storage, index)
            if tag.block is not None and self.marks:
                block, reserved = tag.block, self.state.device(index).driver.reserved_bytes
                self.memory[len(self.marks) - 1, pointer(storage)] = Taken(index, block.size, block.address, reserved)
            return tag

        return placed


def _profiled(recording: Recording, kind: type[Dispatch]) -> type[Dispatch]:
    """The dispatch mode with a mark round each operator."""

    class Profiled(kind):  # type: ignore[misc, valid-type]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "profiler":  # a range of the program's own, which begins or ends here
                return super().__torch_dispatch__(func, types, args, kwargs)
            return recording.marked(super().__torch_dispatch__, func, types, args, kwargs)

    return Profiled


class Profiler:
    """The functions of `torch.autograd` that begin and end a window, round PyTorch's own."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.recording: Recording | None = None
        self.legacy = False
        self.nvtx = False

    def config(self, kind: Any, *args: Any, **kwargs: Any) -> Any:
        """`ProfilerConfig`: the kinds that need a driver are remembered and become Kineto's."""
        self.legacy = kind == ProfilerState.KINETO_GPU_FALLBACK
        self.nvtx = kind == ProfilerState.NVTX
        return STOCK["ProfilerConfig"](ProfilerState.KINETO if self.legacy or self.nvtx else kind, *args, **kwargs)

    def prepare(self, config: Any, activities: Any, *args: Any, **kwargs: Any) -> None:
        """`_prepare_profiler`: the host's part of it."""
        filters = kwargs.get("activity_filter")
        if filters:
            kwargs["activity_filter"] = {key: v for key, v in filters.items() if key != ProfilerActivity.CUDA}
        STOCK["_prepare_profiler"](config, {ProfilerActivity.CPU}, *args, **kwargs)

    def enable(self, config: Any, activities: Any, *args: Any, **kwargs: Any) -> None:
        """`_enable_profiler`: a window begins. For `emit_nvtx` there is nobody to emit to."""
        if self.nvtx:
            return
        cuda = ProfilerActivity.CUDA in activities
        made = Recording(self.state, self.legacy, cuda, ProfilerActivity.CPU in activities)
        made.begin()
        self.recording = made
        STOCK["_enable_profiler"](config, {ProfilerActivity.CPU}, *args, **kwargs)

    def disable(self) -> Any:
        """`_disable_profiler`: a window ends; returns what happened in it."""
        if self.nvtx:
            self.nvtx = False
            return None
        recording, self.recording = self.recording, None
        found = STOCK["_disable_profiler"]()
        if recording is None:
            return found
        recording.end()
        return Result(found, recording)

    def toggle(self, enable: bool, activities: Any) -> None:
        """`_toggle_collection_dynamic`: CUDA work is ours to leave out."""
        if ProfilerActivity.CUDA in activities and self.recording is not None:
            self.recording.toggle(enable)
        rest = set(activities) - {ProfilerActivity.CUDA}
        if rest:
            STOCK["_toggle_collection_dynamic"](enable, rest)


STOCK: dict[str, Any] = {
    name: getattr(autograd_profiler, name)
    for name in (
        "ProfilerConfig",
        "_prepare_profiler",
        "_enable_profiler",
        "_disable_profiler",
        "_toggle_collection_dynamic",
        "_supported_activities",
    )
    if hasattr(autograd_profiler, name)
}
"""PyTorch's own."""


def patches(state: State) -> list[Patch]:
    """The names of `torch.autograd.profiler` behind which a driver stands."""
    profiler = Profiler(state)

    def supported() -> set[Any]:
        return {*STOCK["_supported_activities"](), ProfilerActivity.CUDA}

    values = {
        "ProfilerConfig": profiler.config,
        "_prepare_profiler": profiler.prepare,
        "_enable_profiler": profiler.enable,
        "_disable_profiler": profiler.disable,
        "_toggle_collection_dynamic": profiler.toggle,
        "_supported_activities": supported,
    }
    found = [Patch(autograd_profiler, name, value) for name, value in values.items() if name in STOCK]
    owners = (torch.autograd, torch.profiler)
    found += [Patch(owner, "_supported_activities", supported) for owner in owners]
    return found
