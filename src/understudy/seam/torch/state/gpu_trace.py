"""`torch.cuda._gpu_trace`: callbacks for what happens in the driver, and the sanitizer that listens to them.

They are fired where PyTorch's C++ fires them (c10/cuda/CUDAStream.h, CUDACachingAllocator.cpp, CUDAFunctions.cpp,
ATen/cuda/CUDAEvent.h), once `torch._C._activate_gpu_trace` was called.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch.cuda import _gpu_trace as callbacks

from understudy.seam.patching import Patch

if TYPE_CHECKING:
    from understudy.seam.torch.state.state import State

SANITIZER = "torch.cuda._sanitizer"


class Frees(deque[Any]):
    """The blocks whose storages died, while somebody listens."""

    def append(self, block: Any) -> None:
        """Note the block, and tell that its memory is free."""
        super().append(block)
        callbacks.MemoryDeallocationCallbacks.fire_callbacks(block.address)


class GpuTrace:
    """Who is told of events, streams, memory and waits; nobody until `activate`."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.active = False

    def activate(self) -> None:
        """Tell from now on."""
        if self.active:
            return
        self.active = True
        state = self.state
        place = state.place

        def placed(storage: Any, index: int) -> Any:
            tag = place(storage, index)
            if tag.block is not None:
                tag.frees = self._frees(index)
                callbacks.MemoryAllocationCallbacks.fire_callbacks(tag.block.address)
            return tag

        vars(state)["place"] = placed

    def _frees(self, index: int) -> deque[Any]:
        device = self.state.device(index)
        if not isinstance(device.frees, Frees):
            self.state.drain(device)
            device.frees = Frees()
        return device.frees

    def recorded(self, event: Any, stream: int, first: bool) -> None:
        """An event was recorded on a stream (its handle); the first time makes it."""
        if self.active:
            if first:
                callbacks.EventCreationCallbacks.fire_callbacks(event.cuda_event)
            callbacks.EventRecordCallbacks.fire_callbacks(event.cuda_event, stream)

    def waited(self, event: Any, stream: int) -> None:
        """A stream waits for an event that was recorded."""
        if self.active and event.cuda_event:
            callbacks.EventWaitCallbacks.fire_callbacks(event.cuda_event, stream)

    def deleted(self, event: Any) -> None:
        """An event that was recorded ends."""
        if self.active and event.cuda_event:
            callbacks.EventDeletionCallbacks.fire_callbacks(event.cuda_event)

    def made(self, stream: int) -> None:
        """A stream of a pool was made."""
        if self.active:
            callbacks.StreamCreationCallbacks.fire_callbacks(stream)

    def synchronized_device(self) -> None:
        """The host waited for a device."""
        if self.active:
            callbacks.DeviceSynchronizationCallbacks.fire_callbacks()

    def synchronized_stream(self, stream: int) -> None:
        """The host waited for a stream."""
        if self.active:
            callbacks.StreamSynchronizationCallbacks.fire_callbacks(stream)

    def synchronized_event(self, event: Any) -> None:
        """The host waited for an event that was recorded."""
        if self.active and event.cuda_event:
            callbacks.EventSynchronizationCallbacks.fire_callbacks(event.cuda_event)


def patches(state: State) -> list[Patch]:
    """`torch._C._activate_gpu_trace`; whoever called it before the emulation began is heard too."""
    if SANITIZER in sys.modules:
        state.gpu_trace.activate()
    return [Patch(torch._C, "_activate_gpu_trace", state.gpu_trace.activate)]


class Lifted:
    """While this is entered the sanitizer's mode is off: it must see operators before the emulation does."""

    def __init__(self) -> None:
        module = sys.modules.get(SANITIZER)
        sanitizer = getattr(module, "cuda_sanitizer", None)
        self._mode = sanitizer.dispatch if sanitizer is not None and sanitizer.enabled else None

    def __enter__(self) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)

    def __exit__(self, *error: object) -> None:
        if self._mode is not None:
            self._mode.__enter__()
