"""The device vocabulary for TensorFlow, with native `tf.config.LogicalDevice` objects and tensors in and out.

`from windtunnel import tensorflow as wt` gives `wt.gpu(0)`, `wt.to(batch, device)`, `wt.timer()` and the rest, under
the names of `windtunnel.torch`; `with tf.device(wt.gpu(0)): ...` places what is made inside. Only TensorFlow's public
interface is used, so that it is the same code on real and on emulated GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

import tensorflow as tf

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
    Device: TypeAlias = tf.config.LogicalDevice | str  # or any name that tf.device takes

T = TypeVar("T")

_PLACEMENT: dict[PolicyMode, str] = {"silent": "silent", "warn": "warn", "error": "explicit"}


def cpu(i: int = 0) -> tf.config.LogicalDevice:
    """The CPU: all its cores and the main memory, whatever `i` is."""
    return tf.config.LogicalDevice("/device:CPU:0", "CPU")


def gpu(i: int = 0) -> tf.config.LogicalDevice:
    """GPU number `i`, counted from 0; whether it exists is not asked (see `try_gpu` and `require_gpus`)."""
    if i < 0:
        raise UsageError(f"gpu({i}) does not exist: GPUs are counted from 0.")
    return tf.config.LogicalDevice(f"/device:GPU:{i}", "GPU")


def num_gpus() -> int:
    """How many GPUs this process sees (CUDA_VISIBLE_DEVICES and tf.config.set_visible_devices respected)."""
    return len(tf.config.get_visible_devices("GPU"))


def _why_fewer(found: int) -> str:
    if found or tf.test.is_built_with_cuda():
        return "the machine shows no more to this process"
    return f"TensorFlow {tf.__version__} is a build for the CPU"


_devices: vocabulary.Devices[tf.config.LogicalDevice] = vocabulary.Devices(cpu, gpu, num_gpus, _why_fewer)
try_gpu, try_all_gpus = _devices.try_gpu, _devices.try_all_gpus
require_gpus, visible_devices = _devices.require_gpus, _devices.visible_devices


def _placed(device: Device) -> tf.config.LogicalDevice:
    """The device as a tensor would name it."""
    spec = tf.DeviceSpec.from_string(getattr(device, "name", device))
    kind = spec.device_type or "CPU"
    return tf.config.LogicalDevice(f"/device:{kind}:{spec.device_index or 0}", kind)


def _leaves(x: object) -> list[tf.Tensor]:
    if hasattr(x, "weights") and not tf.is_tensor(x):
        return [getattr(weight, "value", weight) for weight in x.weights]
    return [leaf for leaf in tf.nest.flatten(x) if tf.is_tensor(leaf) or isinstance(leaf, tf.Variable)]


def device_of(x: object) -> tf.config.LogicalDevice:
    """The one device of a tensor, a variable, a nested structure or a Keras model.

    Raises UsageError if `x` holds no tensor, or tensors on several devices.
    """
    return vocabulary.only_device(x, (_placed(leaf.device) for leaf in _leaves(x)), "tensor")


def to(x: T, device: Device, non_blocking: bool | None = None) -> T:
    """`x` on `device`: a tensor or a nested structure; `x` itself if all of it is already there.

    Variables and Keras models stay where they were made: make them inside `tf.device(...)` or under
    tf.distribute.MirroredStrategy; a UsageError says so. TensorFlow orders its copies itself; `non_blocking=False`
    waits for them. Every copy follows `policy`.
    """
    target = _placed(device)
    if hasattr(x, "weights") or isinstance(x, tf.Variable):
        if device_of(x) == target:
            return x
        raise UsageError(
            f"a {type(x).__name__} of TensorFlow cannot be moved: make it inside `with tf.device({target.name!r}):`, "
            "or under tf.distribute.MirroredStrategy for several GPUs."
        )
    moved = tf.nest.map_structure(lambda leaf: _moved(leaf, target), x)
    if non_blocking is False:
        synchronize(device)
    same = all(new is old for new, old in zip(tf.nest.flatten(moved), tf.nest.flatten(x), strict=True))
    result: T = x if same else moved
    return result


def _moved(leaf: tf.Tensor, target: tf.config.LogicalDevice) -> tf.Tensor:
    if not tf.is_tensor(leaf) or _placed(leaf.device) == target:
        return leaf
    vocabulary.copied("wt.to", _placed(leaf.device).name, target.name, _size_bytes(leaf))
    with tf.device(target):
        return tf.identity(leaf)


def _size_bytes(tensor: tf.Tensor) -> int:
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size)


def copy(x: T, device: Device) -> T:
    """A copy of `x` on `device`, newly allocated even if `x` is already there."""
    target = _placed(device)

    def duplicate(leaf: tf.Tensor) -> tf.Tensor:
        if not tf.is_tensor(leaf):
            return leaf
        if _placed(leaf.device) != target:
            vocabulary.copied("wt.copy", _placed(leaf.device).name, target.name, _size_bytes(leaf))
        with tf.device(target):
            there = tf.identity(leaf)
            # tf.identity shares the buffer of a tensor that is there: a stack of one is a new one.
            return tf.squeeze(tf.stack([there]), 0) if _placed(leaf.device) == target else there

    result: T = tf.nest.map_structure(duplicate, x)
    return result


_duplicate = copy


def from_dlpack(x: object, device: Device | None = None, copy: bool | None = None) -> tf.Tensor:
    """An array of another framework (or NumPy) as a tensor, on `device`, by default where it is.

    If the device stays the same, the memory is shared unless `copy` is True: each sees the other's writes. `x`
    is anything that supports DLPack, or an MXNet array. Raises UsageError if TensorFlow cannot share it (with
    the reason), and with `copy=False` if it would have to move. Source: `from_dlpack` of the array API standard.
    """
    capsules = tf.experimental.dlpack
    shared = vocabulary.imported(
        x, lambda source: capsules.from_dlpack(source.__dlpack__()), "TensorFlow", (tf.errors.OpError,)
    )
    place = None if device is None else _placed(device)
    return vocabulary.settled(shared, _placed(shared.device), place, copy, _duplicate, to)


def policy(mode: PolicyMode) -> Policy:
    """Say what happens when `wt.to` or TensorFlow itself copies between devices: nothing, a warning, or an error.

    TensorFlow's part is its device policy ("silent", "warn", "explicit"). It applies from the call on, or to a block.
    """
    placement = tf.config.experimental.get_device_policy()
    return vocabulary.PolicyOfFramework(mode, _PLACEMENT, placement, tf.config.experimental.set_device_policy)


def synchronize(device: Device | None = None) -> None:
    """Wait until every device has finished all that was submitted to it; TensorFlow waits for all at once."""
    tf.test.experimental.sync_devices()


def timer(device: Device | None = None) -> WallTimer:
    """A timer that waits for the devices before and after each block."""
    return WallTimer(lambda: synchronize(device))


def memory(device: Device | None = None) -> FrameworkMemory:
    """The memory of `device`, by default gpu(0) where there is one, else the main memory.

    TensorFlow tells what its tensors hold and held at most; how much is free or there in all it does not.
    """
    place = try_gpu() if device is None else _placed(device)
    if place.device_type != "GPU":
        return vocabulary.host_memory()
    found = tf.config.experimental.get_memory_info(place.name.removeprefix("/device:"))
    return FrameworkMemory(found["current"], found["peak"], None, None)
