"""The device vocabulary for JAX, with native `jax.Device` objects and arrays in and out.

`from windtunnel import jax as wt` gives `wt.gpu(0)`, `wt.to(batch, device)`, `wt.timer()` and the rest, under the names
of `windtunnel.torch`. Only JAX's public interface is used, so that it is the same code on real and on emulated GPUs.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import jax
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
    Device: TypeAlias = jax.Device | jax.sharding.Sharding  # a sharding where several devices are meant

T = TypeVar("T")

_GUARDS: dict[PolicyMode, str] = {"silent": "allow", "warn": "log", "error": "disallow"}


def cpu(i: int = 0) -> jax.Device:
    """The CPU: all its cores and the main memory, whatever `i` is."""
    return jax.devices("cpu")[0]


def gpu(i: int = 0) -> jax.Device:
    """GPU number `i`, counted from 0. Raises UsageError if JAX does not have it: see try_gpu."""
    found = num_gpus()
    if not 0 <= i < found:
        raise UsageError(f"gpu({i}) does not exist: JAX has {found} GPUs, counted from 0; see try_gpu.")
    return jax.devices("gpu")[i]


def num_gpus() -> int:
    """How many GPUs JAX sees (CUDA_VISIBLE_DEVICES respected), 0 if it has no GPU backend."""
    try:
        return int(jax.device_count("gpu"))
    except RuntimeError:  # JAX's "Unknown backend"
        return 0


def _why_fewer(found: int) -> str:
    return "the machine shows no more to this process" if found else f"JAX {jax.__version__} has no GPU backend here"


_devices: vocabulary.Devices[jax.Device] = vocabulary.Devices(cpu, gpu, num_gpus, _why_fewer)
try_gpu, try_all_gpus = _devices.try_gpu, _devices.try_all_gpus
require_gpus, visible_devices = _devices.require_gpus, _devices.visible_devices


def device_of(x: object) -> jax.Device:
    """The one device of an array or of a pytree of arrays (flax params, a batch).

    Raises UsageError if `x` holds no array, or arrays on several devices.
    """
    arrays = [leaf for leaf in jax.tree.leaves(x) if isinstance(leaf, jax.Array)]
    return vocabulary.only_device(x, (device for array in arrays for device in _places(array)), "array")


def _places(array: jax.Array) -> list[jax.Device]:
    return sorted(array.devices(), key=lambda device: (device.platform, device.id))


def to(x: T, device: Device, non_blocking: bool | None = None) -> T:
    """`x` on `device`: an array or a pytree; `x` itself if all of it is already there.

    `device` may be a sharding. NumPy arrays become JAX arrays; other leaves stay as they are. JAX's transfers are
    asynchronous and safe; `non_blocking=False` waits for them. Every copy follows `policy`.
    """
    moved = jax.tree.map(lambda leaf: _moved(leaf, device), x)
    if non_blocking is False:
        jax.block_until_ready(moved)
    same = all(new is old for new, old in zip(jax.tree.leaves(moved), jax.tree.leaves(x), strict=True))
    result: T = x if same else moved
    return result


def _moved(leaf: object, device: Device) -> object:
    if not isinstance(leaf, jax.Array | np.ndarray) or _is_there(leaf, device):
        return leaf
    vocabulary.copied("wt.to", _source(leaf), device, leaf.nbytes)
    return jax.device_put(leaf, device)


def _source(leaf: object) -> str:
    return ", ".join(str(place) for place in _places(leaf)) if isinstance(leaf, jax.Array) else "NumPy"


def _is_there(array: object, device: Device) -> bool:
    if not isinstance(array, jax.Array):
        return False
    if isinstance(device, jax.sharding.Sharding):
        return bool(array.sharding.is_equivalent_to(device, array.ndim))
    return bool(array.devices() == {device})


def copy(x: T, device: Device) -> T:
    """A copy of `x` on `device`, newly allocated even if `x` is already there."""

    def duplicate(leaf: object) -> object:
        if isinstance(leaf, jax.Array | np.ndarray):
            if not _is_there(leaf, device):
                vocabulary.copied("wt.copy", _source(leaf), device, leaf.nbytes)
            return jax.device_put(leaf, device, may_alias=False)
        return leaf

    result: T = jax.tree.map(duplicate, x)
    return result


_duplicate = copy


def from_dlpack(x: object, device: Device | None = None, copy: bool | None = None) -> jax.Array:
    """An array of another framework (or NumPy) as a JAX array, on `device`, by default its own device.

    If the device stays the same, the memory is shared unless `copy` is True: each sees the other's writes. `x`
    is anything that supports DLPack, or an MXNet array. Raises UsageError if JAX cannot share it (with
    the reason), and with `copy=False` if it would have to move. Source: `from_dlpack` of the array API standard.
    """
    shared = vocabulary.imported(x, jax.dlpack.from_dlpack, "JAX")
    place = None if device is None or _is_there(shared, device) else device
    return vocabulary.settled(shared, device_of(shared), place, copy, _duplicate, to)


def policy(mode: PolicyMode) -> Policy:
    """Choose what happens when `wt.to` or JAX itself copies between devices: nothing, a warning or an error.

    JAX's part is its transfer guard ("allow", "log", "disallow"), which watches implicit transfers; `jax.device_put`
    and `jax.device_get` are explicit and stay allowed. It applies from the call on, or to a block.
    """
    apply = functools.partial(jax.config.update, "jax_transfer_guard")
    return vocabulary.PolicyOfFramework(mode, _GUARDS, jax.config.jax_transfer_guard, apply)


def synchronize(device: Device | None = None) -> None:
    """Wait until all arrays of `device` (by default of every device) are computed."""
    jax.effects_barrier()
    for array in jax.live_arrays():
        if not array.is_deleted() and (device is None or device in array.devices()):
            array.block_until_ready()


def timer(device: Device | None = None) -> WallTimer:
    """A timer that waits for `device` (by default every device) before and after each block."""
    return WallTimer(lambda: synchronize(device))


def memory(device: Device | None = None) -> FrameworkMemory:
    """The memory of `device`, by default gpu(0) where there is one, else the main memory.

    `total_bytes` is what XLA may use (its allocator takes 75 % of a GPU unless told otherwise), not the card's size.
    """
    place = try_gpu() if device is None else device
    stats = place.memory_stats() if place.platform != "cpu" else None
    if stats is None:
        return vocabulary.host_memory()
    used, limit = stats.get("bytes_in_use"), stats.get("bytes_limit")
    free = None if used is None or limit is None else limit - used
    return FrameworkMemory(used, stats.get("peak_bytes_in_use"), free, limit)
