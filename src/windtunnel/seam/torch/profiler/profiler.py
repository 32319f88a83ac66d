"""`torch.profiler` with CUDA activity: PyTorch's own profiler on the host, the machine's rows for the devices.

The profiler runs as on a CPU build and sees every operator, range and Python function in real time. Marks in its own
record, one round each thing that the seam does, tie its clock to the modelled one: `result` and
`chrome` then move what the host did to modelled time, leave out what the emulation did inside an operator, and add
runtime calls, kernels and copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.autograd.profiler as autograd_profiler
from torch._C._profiler import ProfilerActivity, ProfilerState, _ExperimentalConfig

from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.profiler import chrome
from windtunnel.seam.torch.profiler.recording import Recording
from windtunnel.seam.torch.profiler.result import Result
from windtunnel.seam.torch.state.state import State


class Profiler:
    """The functions of `torch.autograd` that begin and end a window, round PyTorch's own."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.recordings: list[Recording] = []  # of the windows that are open, one in another
        self.legacy = False
        self.nvtx = False
        self.of_memory = False
        self.synchronizations = self.always_synchronizations = False

    def config(self, kind: object, *args: object, **kwargs: object) -> object:
        """`ProfilerConfig`: the kinds that need a driver are remembered and become Kineto's.

        Its arguments after the kind are whether shapes and whether memory are recorded, then others.
        """
        self.of_memory = bool(args[1])
        asked = next((one for one in args if isinstance(one, _ExperimentalConfig)), None)
        self.synchronizations = self.always_synchronizations or (asked is not None and _synchronizations(asked))
        self.legacy = kind == ProfilerState.KINETO_GPU_FALLBACK
        self.nvtx = kind in (ProfilerState.NVTX, ProfilerState.ITT)
        return STOCK["ProfilerConfig"](ProfilerState.KINETO if self.legacy or self.nvtx else kind, *args, **kwargs)

    def prepare(self, config: object, activities: object, *args: object, **kwargs: object) -> None:
        """`_prepare_profiler`: the host's part of it."""
        filters = kwargs.get("activity_filter")
        if isinstance(filters, dict):
            kwargs["activity_filter"] = {key: v for key, v in filters.items() if key != ProfilerActivity.CUDA}
        STOCK["_prepare_profiler"](config, {ProfilerActivity.CPU}, *args, **kwargs)

    def enable(self, config: object, activities: set[ProfilerActivity], *args: object, **kwargs: object) -> None:
        """`_enable_profiler`: a window begins. For `emit_nvtx` and `emit_itt` there is nobody to emit to."""
        if self.nvtx:
            return
        cuda = ProfilerActivity.CUDA in activities
        made = Recording(self.state, self.legacy, cuda, ProfilerActivity.CPU in activities, self.of_memory)
        made.synchronizations = self.synchronizations
        made.begin()
        try:
            STOCK["_enable_profiler"](config, {ProfilerActivity.CPU}, *args, **kwargs)
        except BaseException:  # there is no window
            made.end()
            raise
        self.recordings.append(made)

    def disable(self) -> object:
        """`_disable_profiler`: a window ends; returns what happened in it."""
        if self.nvtx:
            self.nvtx = False
            return None
        found = STOCK["_disable_profiler"]()
        if not self.recordings:
            return found
        recording = self.recordings.pop()
        recording.end()
        return Result(found, recording, chrome.save)

    def set_synchronizations(self, on: bool) -> None:
        """`_set_cuda_sync_enabled_val`: whether every window says what was waited for."""
        self.always_synchronizations = on
        SET_SYNCHRONIZATIONS(on)

    def toggle(self, enable: bool, activities: Iterable[ProfilerActivity]) -> None:
        """`_toggle_collection_dynamic`: CUDA work is ours to leave out."""
        asked = set(activities)
        if ProfilerActivity.CUDA in asked and self.recordings:
            self.recordings[-1].toggle(enable)
        rest = asked - {ProfilerActivity.CUDA}
        if rest:
            STOCK["_toggle_collection_dynamic"](enable, rest)


def _synchronizations(config: _ExperimentalConfig) -> bool:
    """Whether `enable_cuda_sync_events` was given, which a configuration says only when it is pickled."""
    off, on = _ExperimentalConfig(), _ExperimentalConfig(enable_cuda_sync_events=True)
    states: list[tuple[object, ...]] = [one.__getstate__() for one in (off, on, config)]  # type: ignore[misc]
    return next(bool(mine) for without, with_it, mine in zip(*states, strict=True) if without != with_it)


SET_SYNCHRONIZATIONS = torch._C._profiler._set_cuda_sync_enabled_val
STOCK: dict[str, Callable[..., Any]] = {
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

    def supported() -> set[ProfilerActivity]:
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
    found.append(Patch(torch._C._profiler, "_set_cuda_sync_enabled_val", profiler.set_synchronizations))
    owners = (torch.autograd, torch.profiler)
    found += [Patch(owner, "_supported_activities", supported) for owner in owners]
    return found
