"""The device vocabulary for PyTorch, with native `torch.device` and tensors in and out.

`from windtunnel import torch as wt` gives `wt.gpu(0)`, `wt.to(batch, device)`, `wt.timer()` and the rest.
Only PyTorch's public interface is used, so that it is the same code on real and on emulated GPUs.
"""

from __future__ import annotations

import copy as _copy
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import psutil

from windtunnel import vocabulary
from windtunnel.errors import UsageError, torch_is_missing
from windtunnel.vocabulary import DeviceCopyWarning, GpuInfo, Policy, PolicyMode, Timing, info, policy

try:
    import torch
    from torch import nn
    from torch.utils import dlpack

    from windtunnel.nested import map_tensors, tensors_in
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise torch_is_missing() from None

__all__ = [
    "DeviceCopyWarning",
    "GpuInfo",
    "Memory",
    "Policy",
    "PolicyMode",
    "Stream",
    "Timer",
    "Timing",
    "copy",
    "cpu",
    "device_of",
    "fft_plan_cache",
    "from_dlpack",
    "gpu",
    "info",
    "map_tensors",
    "memory",
    "memory_summary",
    "num_gpus",
    "policy",
    "require_gpus",
    "stream",
    "synchronize",
    "tensors_in",
    "timer",
    "to",
    "try_all_gpus",
    "try_gpu",
    "visible_devices",
]

_cuda: Any = torch.cuda  # parts of it carry no types
Device = torch.device | str | int
T = TypeVar("T")

# Up to this size a copy to a GPU goes through a pinned buffer of its own; PyTorch keeps such buffers for reuse, and
# a larger one would hold on to host memory for a copy that is made once.
STAGED_BYTES = 64 << 20


def cpu(i: int = 0) -> torch.device:
    """The CPU: all its cores and the main memory, whatever `i` is."""
    return torch.device("cpu")


def gpu(i: int = 0) -> torch.device:
    """GPU number `i`, counted from 0. It is not checked that it exists (see `try_gpu` and `require_gpus`).

    Raises UsageError if `i` is negative.
    """
    if i < 0:
        raise UsageError(f"gpu({i}) does not exist: GPUs are counted from 0.")
    return torch.device("cuda", i)


def num_gpus() -> int:
    """How many GPUs this process sees (CUDA_VISIBLE_DEVICES respected)."""
    return torch.cuda.device_count()


def _why_fewer(found: int) -> str:
    if found:
        return "the machine shows no more to this process"
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is a build for the CPU"
    return f"PyTorch {torch.__version__} is built for CUDA {torch.version.cuda} and reaches no driver or no GPU"


_devices: vocabulary.Devices[torch.device] = vocabulary.Devices(cpu, gpu, num_gpus, _why_fewer)
try_gpu, try_all_gpus = _devices.try_gpu, _devices.try_all_gpus
require_gpus, visible_devices = _devices.require_gpus, _devices.visible_devices


def device_of(x: object) -> torch.device:
    """The one device of a tensor, a module or a nested batch (lists, tuples, dicts, dataclasses).

    Raises UsageError if `x` holds no tensor, or tensors on several devices.
    """
    return vocabulary.only_device(x, (tensor.device for tensor in tensors_in(x)), "tensor")


def to(x: T, device: Device, non_blocking: bool | None = None) -> T:
    """`x` on `device`: a tensor, a module (moved in place) or a nested batch; `x` itself if it is already there.

    Shapes and dtypes do not change. `non_blocking=None` copies asynchronously only where no value can become wrong: a
    tensor of up to 64 MiB that goes to a GPU is first copied into a pinned buffer of its own, so that the source may
    change at once. True is PyTorch's own non_blocking: before `synchronize()`, do not change a pinned source, and do
    not read a copy on the CPU. Every copy follows `policy`.
    """
    target = _placed(device)

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == target:
            return tensor
        vocabulary.copied("wt.to", tensor.device, target, _size_bytes(tensor))
        if non_blocking is not None:
            return tensor.to(target, non_blocking=non_blocking)
        if _stageable(tensor, target):
            return _staged(tensor).to(target, non_blocking=True)
        return tensor.to(target)

    def move_module(module: nn.Module) -> nn.Module:
        for tensor in tensors_in(module):
            if tensor.device != target:
                vocabulary.copied("wt.to", tensor.device, target, _size_bytes(tensor))
        return module.to(target)

    result: T = map_tensors(move, x, move_module)
    return result


def copy(x: T, device: Device) -> T:
    """A copy of `x` on `device`, newly allocated even if `x` is already there. Modules are deep-copied.

    A copy from another device follows `policy`.
    """
    target = _placed(device)

    def duplicate(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device != target:
            vocabulary.copied("wt.copy", tensor.device, target, _size_bytes(tensor))
        return tensor.to(target, copy=True)

    def duplicate_module(module: nn.Module) -> nn.Module:
        for tensor in tensors_in(module):
            if tensor.device != target:
                vocabulary.copied("wt.copy", tensor.device, target, _size_bytes(tensor))
        return _copy.deepcopy(module).to(target)

    result: T = map_tensors(duplicate, x, duplicate_module)
    return result


_duplicate = copy


def from_dlpack(x: object, device: Device | None = None, copy: bool | None = None) -> torch.Tensor:
    """An array of another framework (or NumPy) as a tensor of the same shape, on `device`, by default its own device.

    If the device stays the same, the memory is shared unless `copy` is True: a write through one is seen by the other.
    `x` is an MXNet array or anything that supports DLPack. Raises UsageError if PyTorch cannot share it (with the
    reason), and with `copy=False` if it would have to move. Source: `from_dlpack` of the array API standard.
    """
    shared = vocabulary.imported(x, dlpack.from_dlpack, "PyTorch")
    place = None if device is None else _placed(device)
    return vocabulary.settled(shared, shared.device, place, copy, _duplicate, to)


def _placed(device: Device) -> torch.device:
    """The device with its index: a bare "cuda" places tensors on the current GPU."""
    target = torch.device(device)
    if target == torch.device("cuda"):
        return torch.device("cuda", torch.cuda.current_device())
    return target


def _stageable(tensor: torch.Tensor, target: torch.device) -> bool:
    if target.type != "cuda" or tensor.device.type != "cpu":
        return False
    return tensor.layout is torch.strided and not tensor.requires_grad and _size_bytes(tensor) <= STAGED_BYTES


def _staged(tensor: torch.Tensor) -> torch.Tensor:
    """The values in pinned memory that nobody else writes to, which `pin_memory` is not where they are pinned."""
    return torch.empty_like(tensor, pin_memory=True).copy_(tensor)


def _size_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def synchronize(device: Device | None = None) -> None:
    """Wait until `device` (by default every GPU that this process uses) has finished all work submitted to it."""
    if device is not None:
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)
        return
    if _cuda.is_initialized():
        for index in range(num_gpus()):
            # Waiting would make a context, which takes the GPU's memory.
            if torch._C._cuda_hasPrimaryContext(index):  # type: ignore[attr-defined]
                torch.cuda.synchronize(index)


class Stream:
    """A side stream of a GPU. On the CPU, which has no streams, work runs at once.

    `with side: ...` runs a block on it, after all work that the calling stream has so far. `side.join(results)` makes
    the calling stream wait for it, and tells the allocator that the results are used there.
    """

    def __init__(self, device: Device | None = None, priority: int = 0) -> None:
        self.device = _default_device() if device is None else _placed(device)
        self._stream = _cuda.Stream(self.device, priority=priority) if self.device.type == "cuda" else None
        self._blocks: list[AbstractContextManager[object]] = []

    def __enter__(self) -> Stream:
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
            block = _cuda.stream(self._stream)
            block.__enter__()
            self._blocks.append(block)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._blocks:
            self._blocks.pop().__exit__(kind, error, tb)

    def join(self, *results: object) -> None:
        if self._stream is None:
            return
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self._stream)
        for tensor in tensors_in(results):
            if tensor.device.type == "cuda":
                tensor.record_stream(current)


def stream(device: Device | None = None, priority: int = 0) -> Stream:
    """A new side stream of `device` (by default the current GPU): see Stream."""
    return Stream(device, priority)


class Timer:
    """Times blocks on a device: CUDA events on the current stream of a GPU, the wall clock on the CPU.

    `with t: ...` may be used many times, also nested, and never waits. `t.timing` waits for the last block and returns
    the seconds of all blocks, in the order in which they ended.
    """

    def __init__(self, device: Device | None = None) -> None:
        self.device = _default_device() if device is None else _placed(device)
        self._begun: list[object] = []  # the blocks that are open, one in another
        self._pairs: list[tuple[Any, Any]] = []

    @property
    def clock(self) -> str:
        return "CUDA events" if self.device.type == "cuda" else "wall clock"

    def _now(self) -> object:
        if self.device.type != "cuda":
            return time.perf_counter_ns()
        return recorded_event(self.device, timing=True)

    def __enter__(self) -> Timer:
        self._begun.append(self._now())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        begun = self._begun.pop()
        if error is None:
            self._pairs.append((begun, self._now()))

    @property
    def timing(self) -> Timing:
        """The times of all blocks so far, in seconds. Raises UsageError if there were none."""
        if not self._pairs:
            raise UsageError(
                "the timer has timed nothing yet: use `with timer: ...` or `timer.measure(function)` first."
            )
        if self.device.type != "cuda":
            return Timing(tuple((end - begin) / 1e9 for begin, end in self._pairs), self.clock)
        self._pairs[-1][1].synchronize()
        return Timing(tuple(begin.elapsed_time(end) / 1e3 for begin, end in self._pairs), self.clock)

    def measure(
        self, function: Callable[..., object], *arguments: object, warmup: int = 3, repeats: int = 20
    ) -> Timing:
        """Call `function(*arguments)` `warmup` times untimed, then `repeats` times timed."""
        for _ in range(warmup):
            function(*arguments)
        synchronize(self.device)
        self._pairs.clear()
        for _ in range(repeats):
            with self:
                function(*arguments)
        return self.timing


def timer(device: Device | None = None) -> Timer:
    """A timer for `device`, by default the current GPU if there is one, otherwise the CPU: see Timer."""
    return Timer(device)


def _default_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if num_gpus() else cpu()


@dataclass(frozen=True)
class Memory:
    """The memory of a device, in bytes.

    On a GPU `allocated` is what tensors hold, and `reserved` what PyTorch's caching allocator holds, which nvidia-smi
    counts as used. On the CPU both are the resident memory of this process.
    """

    allocated_bytes: int
    peak_allocated_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    free_bytes: int
    total_bytes: int


def memory(device: Device | None = None) -> Memory:
    """The memory of `device`, in bytes; by default of the current GPU if there is one, otherwise the main memory."""
    place = _default_device() if device is None else _placed(device)
    if place.type == "cuda":
        free, total = torch.cuda.mem_get_info(place)
        return Memory(
            torch.cuda.memory_allocated(place),
            torch.cuda.max_memory_allocated(place),
            torch.cuda.memory_reserved(place),
            torch.cuda.max_memory_reserved(place),
            free,
            total,
        )
    used, machine = psutil.Process().memory_info().rss, psutil.virtual_memory()
    peak = max(used, _peak_resident_bytes())
    return Memory(used, peak, used, peak, machine.available, machine.total)


def _peak_resident_bytes() -> int:
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_summary(device: Device | None = None) -> str:
    """PyTorch's own table of the caching allocator of a GPU; one line for the CPU."""
    place = _default_device() if device is None else _placed(device)
    if place.type == "cuda":
        return str(torch.cuda.memory_summary(place))
    now = memory(place)
    mib = 1 << 20
    free = f"free {now.free_bytes // mib} MiB of {now.total_bytes // mib} MiB"
    return f"main memory: this process {now.allocated_bytes // mib} MiB, {free}"


def recorded_event(device: Device, stream: torch.Stream | None = None, timing: bool = False) -> torch.Event:
    """A CUDA event, recorded now on `stream`, by default the current stream of `device`."""
    event: torch.Event = _cuda.Event(enable_timing=timing)
    event.record(torch.cuda.current_stream(device) if stream is None else stream)
    return event


def fft_plan_cache(device: Device | None = None) -> Any:
    """The cuFFT plan cache of a GPU: `size`, `max_size` (settable), `clear()`. Raises UsageError for the CPU."""
    place = _default_device() if device is None else _placed(device)
    if place.type != "cuda":
        raise UsageError("the CPU has no cuFFT plan cache: ask for that of a GPU, as in fft_plan_cache(gpu(0)).")
    return torch.backends.cuda.cufft_plan_cache[place]
