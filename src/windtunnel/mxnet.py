"""The device vocabulary for MXNet 1.9, with native `mx.Context` objects and arrays in and out.

`from windtunnel import mxnet as wt` gives `wt.gpu(0)`, `wt.to(batch, device)`, `wt.timer()` and the rest, under the
names of `windtunnel.torch`. Only MXNet's public interface is used, so that it is the same code on real and on emulated
GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import mxnet as mx
import numpy as np

from windtunnel import vocabulary
from windtunnel.errors import UsageError
from windtunnel.vocabulary import (
    DeviceCopyWarning,
    FrameworkMemory,
    GpuInfo,
    Policy,
    PolicyMode,
    Timing,
    WallTimer,
    info,
    policy,
)

__all__ = [
    "DeviceCopyWarning",
    "FrameworkMemory",
    "GpuInfo",
    "Policy",
    "PolicyMode",
    "Timing",
    "WallTimer",
    "copy",
    "cpu",
    "device_of",
    "from_dlpack",
    "gpu",
    "info",
    "memory",
    "num_gpus",
    "policy",
    "require_gpus",
    "synchronize",
    "timer",
    "to",
    "try_all_gpus",
    "try_gpu",
    "visible_devices",
]

if TYPE_CHECKING:
    Device: TypeAlias = mx.Context
    Array: TypeAlias = mx.nd.NDArray | mx.np.ndarray

T = TypeVar("T")


def cpu(i: int = 0) -> Device:
    """The CPU: all its cores and the main memory. MXNet tells contexts of other `i` apart, the memory is the same."""
    return mx.cpu(i)


def gpu(i: int = 0) -> Device:
    """GPU number `i`, counted from 0; whether it exists is not asked (see `try_gpu` and `require_gpus`)."""
    if i < 0:
        raise UsageError(f"gpu({i}) does not exist: GPUs are counted from 0.")
    return mx.gpu(i)


def num_gpus() -> int:
    """How many GPUs this process sees (CUDA_VISIBLE_DEVICES respected)."""
    return int(mx.context.num_gpus())


def _why_fewer(found: int) -> str:
    if found or mx.runtime.Features().is_enabled("CUDA"):
        return "the machine shows no more to this process"
    return f"MXNet {mx.__version__} is a build for the CPU"


_devices: vocabulary.Devices[Device] = vocabulary.Devices(cpu, gpu, num_gpus, _why_fewer)
try_gpu, try_all_gpus = _devices.try_gpu, _devices.try_all_gpus
require_gpus, visible_devices = _devices.require_gpus, _devices.visible_devices


def _contexts(x: object) -> Iterator[object]:
    if isinstance(x, mx.nd.NDArray):
        yield x.ctx
    elif isinstance(x, mx.gluon.Block):
        for parameter in x.collect_params().values():
            yield from parameter.list_ctx()
    elif isinstance(x, Mapping):
        for value in x.values():
            yield from _contexts(value)
    elif isinstance(x, list | tuple):
        for value in x:
            yield from _contexts(value)


def device_of(x: object) -> Device:
    """The one context of an array, a gluon block or a nested batch (lists, tuples, dicts).

    Raises UsageError where `x` holds no array, or arrays of several contexts.
    """
    return vocabulary.only_device(x, _contexts(x), "array")


def to(x: T, device: Device, non_blocking: bool | None = None) -> T:
    """`x` on `device`: an array, a gluon block (moved in place) or a nested batch; `x` itself where it is there.

    MXNet's engine orders its copies itself; `non_blocking=False` waits for them. Every copy follows `policy`.
    """
    if isinstance(x, mx.gluon.Block):
        x.collect_params().reset_ctx(device)
        return x
    result: T = _mapped(lambda array: _moved(array, device), x)
    if non_blocking is False:
        synchronize(device)
    return result


def _moved(array: Array, device: Device) -> Array:
    if array.ctx == device:
        return array
    vocabulary.copied("wt.to", array.ctx, device, _size_bytes(array))
    return array.copyto(device)


def _size_bytes(array: Array) -> int:
    return int(array.size * np.dtype(array.dtype).itemsize)


def _mapped(function: Callable[[object], object], x: object) -> Any:
    if isinstance(x, mx.nd.NDArray):
        return function(x)
    if isinstance(x, Mapping):
        values = {key: _mapped(function, value) for key, value in x.items()}
        return x if all(values[key] is x[key] for key in values) else values
    if isinstance(x, list | tuple):
        items = [_mapped(function, value) for value in x]
        if all(item is former for item, former in zip(items, x, strict=True)):
            return x
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    return x


def copy(x: T, device: Device) -> T:
    """A copy of `x` on `device`, newly allocated even if `x` is already there."""

    def duplicate(array: Array) -> Array:
        if array.ctx != device:
            vocabulary.copied("wt.copy", array.ctx, device, _size_bytes(array))
        return array.copyto(device)

    result: T = _mapped(duplicate, x)
    return result


_duplicate = copy


def from_dlpack(x: object, device: Device | None = None, copy: bool | None = None) -> Array:
    """An array of another framework (or NumPy) as an array, on `device`, by default where it is.

    If the device stays the same, the memory is shared unless `copy` is True: each sees the other's writes. `x`
    is anything that supports DLPack, or an MXNet array. Raises UsageError if MXNet cannot share it (with
    the reason), and with `copy=False` if it would have to move. Source: `from_dlpack` of the array API standard.
    """
    shared = vocabulary.imported(x, lambda source: mx.nd.from_dlpack(source.__dlpack__()), "MXNet").as_np_ndarray()
    return vocabulary.settled(shared, shared.ctx, device, copy, _duplicate, to)


def synchronize(device: Device | None = None) -> None:
    """Wait until every device has finished all that was submitted to it; MXNet waits for all at once."""
    mx.nd.waitall()


def timer(device: Device | None = None) -> WallTimer:
    """A timer that waits for the devices before and after each block."""
    return WallTimer(lambda: synchronize(device))


def memory(device: Device | None = None) -> FrameworkMemory:
    """The memory of `device`, by default gpu(0) where there is one, else the main memory.

    MXNet tells what is free on the card and how large it is, for all processes together; no peak.
    """
    place = try_gpu() if device is None else device
    if place.device_type != "gpu":
        return vocabulary.host_memory()
    free, total = mx.context.gpu_memory_info(place.device_id)
    return FrameworkMemory(total - free, None, free, total)
