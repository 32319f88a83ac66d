"""Streams and events, under PyTorch's names, on the machine's clock."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar, Self

import torch

from windtunnel.machine.capture import refuse_unsafe
from windtunnel.machine.stream import Event as MachineEvent
from windtunnel.machine.stream import Stream as MachineStream
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.plans.messages import cuda_error
from windtunnel.seam.torch.state.state import State, StreamObject, stream_of
from windtunnel.seam.torch.state.stream_ids import HANDLE_BASE, handle

TorchStream = torch.Stream
TorchEvent = torch.Event

CUDA_TYPE = 1
"""c10::DeviceType::CUDA, as `torch.Stream` takes it."""


def patches(state: State) -> list[Patch]:
    """The classes and functions of `torch.cuda` that answer for streams and events."""
    generic = _generic(TorchStream)
    generic_event = _generic(TorchEvent)
    stream_class, external_class = _stream_classes(state, generic)
    event_class = _event_class(state, generic_event)
    generic._cuda_class, generic_event._cuda_class = stream_class, event_class
    cuda = torch.cuda

    def wrap(stream: MachineStream, stream_id: int | None = None) -> torch.cuda.Stream:
        stream_id = state.stream_id(stream) if stream_id is None else stream_id
        made: torch.cuda.Stream = stream_class(stream_id=stream_id, device_index=stream.device, device_type=CUDA_TYPE)
        return made

    def current_stream(device: object = None) -> object:
        cuda._lazy_init()
        index = _index(state, device)
        stream = state.current_stream(index)
        return wrap(stream, state.current_id(stream))

    def default_stream(device: object = None) -> object:
        cuda._lazy_init()
        return wrap(state.device(_index(state, device)).default_stream)

    def set_stream(stream: torch.Stream | None) -> None:
        if stream is not None:
            state.set_stream(stream.device_index, stream.stream_id)
            state.local.device = stream.device_index

    def from_external(data_ptr: int, device: object = None) -> object:
        cuda._lazy_init()
        return external_class(data_ptr, device)

    state.wrap_stream = wrap
    return [
        Patch(cuda, "Stream", stream_class),
        Patch(cuda.streams, "Stream", stream_class),
        Patch(cuda, "ExternalStream", external_class),
        Patch(cuda.streams, "ExternalStream", external_class),
        Patch(cuda, "Event", event_class),
        Patch(cuda.streams, "Event", event_class),
        Patch(cuda, "current_stream", current_stream),
        Patch(cuda, "default_stream", default_stream),
        Patch(cuda, "set_stream", set_stream),
        Patch(cuda, "get_stream_from_external", from_external),
        Patch(torch, "Stream", generic),
        Patch(torch, "Event", generic_event),
    ]


def _index(state: State, device: object) -> int:
    if device is None:
        return state.local.device
    index = state.index(device.idx if isinstance(device, torch.cuda.device) else device)
    if index < 0:
        raise ValueError(f"Expected a cuda device, but got: {device}")
    return index


class StreamMethods:
    """What `torch.cuda.Stream` adds to `torch.Stream`; `_state` is the emulation, `_wt` the machine's stream."""

    _state: ClassVar[State]
    _wt: MachineStream
    device_index: int
    stream_id: int
    device: torch.device

    @property
    def cuda_stream(self) -> int:
        return handle(self._wt) if self.stream_id & 1 else self.stream_id

    @property
    def priority(self) -> int:
        return int(self._wt.priority)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority: PyTorch uses four at most (c10/cuda/CUDAStream.h)."""
        return 0, -3

    @property
    def native_handle(self) -> int:
        return self.cuda_stream

    @property
    def _as_parameter_(self) -> object:
        return ctypes.c_void_p(self.cuda_stream)

    def wait_event(self, event: EventMethods | torch.cuda.Event) -> None:
        event.wait(self)  # type: ignore[arg-type]  # streams are made of this class and one of PyTorch's

    def wait_stream(self, stream: StreamMethods) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: EventMethods | None = None) -> EventMethods | torch.cuda.Event:
        recorded = torch.cuda.Event() if event is None else event
        recorded.record(self)  # type: ignore[arg-type]
        return recorded

    def query(self) -> bool:
        self._state.use(self._wt.device)
        return self._state.machine.query_stream(self._state.host(), self._wt)

    def synchronize(self) -> None:
        self._state.use(self._wt.device)
        self._state.machine.synchronize_stream(self._state.host(), self._wt, site=self._state.site())
        self._state.synchronized("cudaStreamSynchronize", self._wt)

    def is_capturing(self) -> bool:
        return self._state.capturing(self._wt)

    def __enter__(self) -> object:
        self._previous = [*getattr(self, "_previous", []), torch.cuda.current_stream(self.device_index)]
        self._devices = [*getattr(self, "_devices", []), self._state.local.device]
        torch.cuda.set_stream(self)  # type: ignore[arg-type]
        return self

    def __exit__(self, *error: object) -> None:
        torch.cuda.set_stream(self._previous.pop())
        self._state.local.device = self._devices.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchStream) and (other.stream_id, other.device_index) == (
            self.stream_id,
            self.device_index,
        )

    def __hash__(self) -> int:
        return hash((self.cuda_stream, self.device))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream


class EventMethods:
    """What `torch.cuda.Event` adds to `torch.Event`; `_wt` is the machine's event."""

    _state: ClassVar[State]
    _wt: MachineEvent
    _device: int | None = None

    @property
    def device(self) -> torch.device | None:
        return None if self._device is None else self._state.cuda_devices[self._device]

    @property
    def cuda_event(self) -> int:
        return 0 if self._device is None else HANDLE_BASE + (1 << 32) + self._wt.number * 16

    @property
    def event_id(self) -> int:
        return self.cuda_event

    @property
    def _as_parameter_(self) -> object:
        return ctypes.c_void_p(self.cuda_event)

    def record(self, stream: StreamObject | None = None) -> None:
        state = self._state
        found = state.current_stream(state.local.device) if stream is None else stream_of(state, stream)
        if self._device is not None and self._device != found.device:
            raise RuntimeError(f"Event device {self._device} does not match recording stream's device {found.device}.")
        first, self._device = self._device is None, found.device
        self._state.use(found.device)
        self._state.machine.record(self._state.host(), self._wt, found, self._state.site())
        self._state.gpu_trace.recorded(self, handle(found), first)

    def wait(self, stream: StreamObject | None = None) -> None:
        state = self._state
        found = state.current_stream(state.local.device) if stream is None else stream_of(state, stream)
        self._state.machine.wait_event(self._state.host(), self._wt, found, self._state.site())
        self._state.gpu_trace.waited(self, handle(found))

    def query(self) -> bool:
        refuse_unsafe(self._state.captures, self._state.thread_of_cuda())
        return self._state.machine.query_event(self._state.host(), self._wt)

    def synchronize(self) -> None:
        self._state.machine.synchronize_event(self._state.host(), self._wt, self._state.site())
        self._state.synchronized("cudaEventSynchronize")
        self._state.gpu_trace.synchronized_event(self)

    def __del__(self) -> None:
        if self._device is not None:
            self._state.gpu_trace.deleted(self)

    def elapsed_time(self, end_event: EventMethods) -> float:
        if not (self._wt.timed and end_event._wt.timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._wt.time_ns is None or end_event._wt.time_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if self._device != end_event._device:
            raise cuda_error("invalid resource handle", "cudaErrorInvalidResourceHandle")
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return float((end_event._wt.time_ns - self._wt.time_ns) / 1e6)

    @classmethod
    def from_ipc_handle(cls, device: object, handle: bytes) -> object:
        raise RuntimeError("windtunnel cannot open CUDA IPC event handles: the processes share no emulated device.")

    def ipc_handle(self) -> bytes:
        raise RuntimeError("windtunnel cannot export CUDA IPC event handles: the processes share no emulated device.")

    def __repr__(self) -> str:
        if self.cuda_event:
            return f"<torch.cuda.Event {self.cuda_event:#x}>"
        return "<torch.cuda.Event uninitialized>"


def _stream_classes(state: State, generic: Any) -> tuple[Any, Any]:
    class Stream(StreamMethods, generic):  # type: ignore[misc]
        """A queue of work on one emulated device (torch.cuda.Stream)."""

        _state = state

        def __new__(cls, device: object = None, priority: int = 0, **kwargs: object) -> Self:
            torch.cuda._lazy_init()
            if "stream_id" not in kwargs:
                index = _index(state, device)
                least, greatest = cls.priority_range()
                stream = state.new_stream(index, max(greatest, min(least, priority)))
                kwargs = {"stream_id": state.stream_id(stream), "device_index": index}
            made: Self = TorchStream.__new__(cls, **{"device_type": CUDA_TYPE, **kwargs})  # type: ignore[call-overload]
            return made

        def __init__(self, device: object = None, priority: int = 0, **kwargs: object) -> None:
            self._wt = stream_of(state, self)

    class ExternalStream(Stream):
        """A stream that another library made (torch.cuda.ExternalStream); it waits for the default stream."""

        def __new__(cls, stream_ptr: int, device: object = None, **kwargs: object) -> Self:
            torch.cuda._lazy_init()
            index = _index(state, device)
            return Stream.__new__(cls, stream_id=stream_ptr, device_index=index)

        def __init__(self, stream_ptr: int, device: object = None, **kwargs: object) -> None:
            super().__init__()

    for made in (Stream, ExternalStream):
        made.__module__, made.__qualname__ = "torch.cuda.streams", made.__name__
    return Stream, ExternalStream


def _event_class(state: State, generic: Any) -> object:
    class Event(EventMethods, generic):  # type: ignore[misc]
        """A mark in a stream (torch.cuda.Event); `elapsed_time` is in milliseconds."""

        _state = state

        def __new__(
            cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
        ) -> Self:
            return TorchEvent.__new__(cls, device="cpu")

        def __init__(
            self,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> None:
            torch.cuda._lazy_init()
            self._wt = state.machine.event(state.local.host, bool(enable_timing))
            self._device = None

    Event.__module__, Event.__qualname__ = "torch.cuda.streams", "Event"
    return Event


def _generic(stock: Any) -> Any:
    """`torch.Stream` or `torch.Event` as a program calls it: for a CUDA device (or none) the emulated class."""

    class Meta(type(stock)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, stock) if cls is Generic else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, stock) if cls is Generic else super().__subclasscheck__(subclass)

        def __call__(cls, *args: object, **kwargs: object) -> object:
            return make(*args, **kwargs) if cls is Generic else super().__call__(*args, **kwargs)

    class Generic(stock, metaclass=Meta):  # type: ignore[misc]
        _cuda_class: ClassVar[Any] = None

    def make(device: Any = None, *args: object, **kwargs: object) -> object:
        if "stream_id" in kwargs or (device is not None and torch.device(device).type != "cuda"):
            return stock(device, *args, **kwargs) if device is not None else stock(*args, **kwargs)
        return (
            Generic._cuda_class(*args, **kwargs)
            if stock is TorchEvent
            else Generic._cuda_class(device, *args, **kwargs)
        )

    Generic.__name__ = Generic.__qualname__ = stock.__name__
    Generic.__module__ = "torch"
    return Generic
