"""`torch.cuda._gpu_trace`: callbacks for what happens in the driver, for whoever registered one.

They are fired where PyTorch's C++ fires them (c10/cuda/CUDAStream.h, CUDACachingAllocator.cpp, CUDAFunctions.cpp,
ATen/cuda/CUDAEvent.h), once `torch._C._activate_gpu_trace` was called.
"""

from __future__ import annotations

from typing import Protocol

from torch.cuda import _gpu_trace as callbacks

from windtunnel.machine.device import Device
from windtunnel.machine.memory.blocks import Block
from windtunnel.seam.torch.state.observers import Observers
from windtunnel.seam.torch.tags import Tag


class Handle(Protocol):
    """One of PyTorch's events."""

    @property
    def cuda_event(self) -> int:
        """The driver's handle; 0 before the first record."""


class GpuTrace:
    """Who is told of events, streams, memory and waits; nobody until `activate`."""

    def __init__(self, observers: Observers) -> None:
        self.observers = observers
        self.active = False

    def activate(self) -> None:
        """Tell from now on; PyTorch has nothing that would end it."""
        if not self.active:
            self.active = True
            self.observers.join(placed=_placed, died=_died)

    def recorded(self, event: Handle, stream: int, first: bool) -> None:
        """An event was recorded on a stream (its handle); the first time makes it."""
        if self.active:
            if first:
                callbacks.EventCreationCallbacks.fire_callbacks(event.cuda_event)
            callbacks.EventRecordCallbacks.fire_callbacks(event.cuda_event, stream)

    def waited(self, event: Handle, stream: int) -> None:
        """A stream waits for an event that was recorded."""
        if self.active and event.cuda_event:
            callbacks.EventWaitCallbacks.fire_callbacks(event.cuda_event, stream)

    def deleted(self, event: Handle) -> None:
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

    def synchronized_event(self, event: Handle) -> None:
        """The host waited for an event that was recorded."""
        if self.active and event.cuda_event:
            callbacks.EventSynchronizationCallbacks.fire_callbacks(event.cuda_event)


def _placed(storage: object, index: int, tag: Tag) -> None:
    if tag.block is not None:
        callbacks.MemoryAllocationCallbacks.fire_callbacks(tag.block.address)


def _died(device: Device, block: Block) -> None:
    callbacks.MemoryDeallocationCallbacks.fire_callbacks(block.address)
