"""What the vocabularies of the four frameworks share and no framework owns: the copy policy, NVML, timings."""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

from windtunnel.errors import UsageError

PolicyMode = Literal["silent", "warn", "error"]
T = TypeVar("T")
D = TypeVar("D")


class DeviceCopyWarning(UserWarning):
    """A copy between devices, while the policy is "warn"."""


class Vocabulary(Protocol):
    """The names that every framework's module offers, with that framework's own devices and arrays."""

    def cpu(self, i: int = 0) -> object: ...
    def gpu(self, i: int = 0) -> object: ...
    def num_gpus(self) -> int: ...
    def try_gpu(self, i: int = 0) -> object: ...
    def try_all_gpus(self) -> Sequence[object]: ...
    def require_gpus(self, n: int) -> Sequence[object]: ...
    def device_of(self, x: object) -> object: ...
    def to(self, x: Any, device: Any) -> Any: ...
    def copy(self, x: Any, device: Any) -> Any: ...
    def from_dlpack(self, x: object, device: Any = None, copy: bool | None = None) -> Any: ...
    def synchronize(self, device: Any = None) -> None: ...


@dataclass(frozen=True)
class Devices(Generic[D]):
    """The words for devices that mean the same in every framework: each module of the vocabulary has those of its own.

    They are made of what only the framework can say: `cpu()`, `gpu(i)`, `num_gpus()`, and `why_fewer(found)`, the
    reason why this process sees no more than `found` GPUs.
    """

    cpu: Callable[[], D]
    gpu: Callable[[int], D]
    num_gpus: Callable[[], int]
    why_fewer: Callable[[int], str]

    def try_gpu(self, i: int = 0) -> D:
        """gpu(i) if it exists, otherwise cpu()."""
        return self.gpu(i) if self.num_gpus() >= i + 1 else self.cpu()

    def try_all_gpus(self) -> list[D]:
        """Every GPU that this process sees, or [cpu()] if there is none."""
        return [self.gpu(i) for i in range(self.num_gpus())] or [self.cpu()]

    def require_gpus(self, n: int) -> list[D]:
        """The first `n` GPUs. Raises UsageError if there are fewer; it says how many were found and why."""
        found = self.num_gpus()
        if found >= n:
            return [self.gpu(i) for i in range(n)]
        mask = os.environ.get("CUDA_VISIBLE_DEVICES")
        masked = f" CUDA_VISIBLE_DEVICES is {mask!r}." if mask is not None else ""
        raise UsageError(
            f"{n} GPU{'s' if n != 1 else ''} needed, {found} found: {self.why_fewer(found)}.{masked} Run it where "
            f"there are more, or rehearse with `windtunnel run --gpus {n}xV100 script.py`."
        )

    def visible_devices(self) -> list[str]:
        """The physical identifiers (index or UUID) behind gpu(0), gpu(1), ... of this process.

        CUDA reads CUDA_VISIBLE_DEVICES once, at its first use, and stops at the first entry that names no GPU.
        """
        count, mask = self.num_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")
        if mask is None:
            return [str(index) for index in range(count)]
        return [entry.strip() for entry in mask.split(",")][:count]


def only_device(x: object, devices: Iterable[D], noun: str) -> D:
    """The device of `x`, of whose tensors (the framework's `noun`) these are the `devices`.

    Raises UsageError where there is none, or more than one.
    """
    different = list(dict.fromkeys(devices))
    if len(different) == 1:
        return different[0]
    kind = type(x).__name__
    if not different:
        raise UsageError(f"device_of found no {noun} in a {kind}: only {noun}s have a device.")
    found = ", ".join(map(_name, different))
    raise UsageError(f"device_of found {noun}s on {found} in one {kind}: move them to one device first.")


def _name(device: object) -> str:
    """What a device is called: TensorFlow's are tuples that hold their name."""
    return str(getattr(device, "name", device))


class Policy:
    """The policy in force; as a context manager, which may be used again, it puts the former one back."""

    mode: PolicyMode = "silent"

    def __init__(self, wanted: PolicyMode, former: PolicyMode) -> None:
        self._wanted: PolicyMode = wanted
        self._called_over: list[PolicyMode] = [former]  # what the call replaced, until the first block
        self._formers: list[PolicyMode] = []

    def __enter__(self) -> Policy:
        self._formers.append(self._called_over.pop() if self._called_over else Policy.mode)
        Policy.mode = self._wanted
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        Policy.mode = (self._formers or self._called_over).pop()


def policy(mode: PolicyMode) -> Policy:
    """Choose what happens when `wt.to`, `wt.copy` or a Prefetcher copies between devices.

    `mode` is "silent", "warn" (a DeviceCopyWarning) or "error" (a UsageError). It applies to the whole process from the
    call on, or to a block: `with wt.policy("error"): ...`. Raises UsageError for any other mode. Source: item 41
    of the mission, "no silent copies", with the names of TensorFlow's device policy.
    """
    if mode not in get_args(PolicyMode):
        raise UsageError(f"policy {mode!r} does not exist: choose 'silent', 'warn' or 'error'.")
    former = Policy.mode
    Policy.mode = mode
    return Policy(mode, former)


class PolicyOfFramework(Policy):
    """The policy, which also sets what the framework itself says about copies, and puts it back.

    `settings` maps the modes to the framework's own names; `apply` sets one, and `setting` was in force before.
    """

    def __init__(
        self, mode: PolicyMode, settings: dict[PolicyMode, str], setting: object, apply: Callable[[object], None]
    ) -> None:
        former = Policy.mode
        policy(mode)
        super().__init__(mode, former)
        self._settings, self._setting, self._apply = settings, setting, apply
        apply(settings[mode])

    def __enter__(self) -> Policy:
        self._apply(self._settings[self._wanted])
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        super().__exit__(kind, error, tb)
        self._apply(self._setting)


def copied(what: str, source: object, destination: object, size_bytes: int) -> None:
    """Apply the policy to one copy of `size_bytes` that `what` is about to make."""
    if Policy.mode == "silent":
        return
    text = f"{what} copies {size_bytes} bytes from {source} to {destination}"
    if Policy.mode == "error":
        raise UsageError(f"{text}, and the policy is 'error': place the data there first, or use policy('silent').")
    warnings.warn(f"{text}.", DeviceCopyWarning, stacklevel=_depth_of_caller())


def _depth_of_caller() -> int:
    """The stack level, counted from `copied`, of the first line outside this package: the one that a person reads."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("windtunnel."):
        level, frame = level + 1, frame.f_back
    return level


def _lending(x: object) -> AbstractContextManager[object]:
    """What its framework wants in force while `x` is exported: PyTorch, that its device is the current one."""
    if type(x).__module__.split(".")[0] != "torch":
        return nullcontext()
    context: AbstractContextManager[object] = sys.modules["torch"].cuda.device_of(x)
    return context


class _Context(Protocol):
    device_id: int
    device_type: str


class _Exporting(Protocol):
    ctx: _Context

    def to_dlpack_for_read(self) -> object: ...


class _MXNetArray:
    """An array of MXNet 1.9, which is older than the protocol, as one that speaks it."""

    def __init__(self, array: _Exporting) -> None:
        self._array = array

    def __dlpack__(self, **_: object) -> object:
        return self._array.to_dlpack_for_read()

    def __dlpack_device__(self) -> tuple[int, int]:
        context = self._array.ctx
        return (_DLPACK_CUDA, int(context.device_id)) if context.device_type == "gpu" else (_DLPACK_CPU, 0)


_REFUSALS: tuple[type[Exception], ...] = (BufferError, RuntimeError, TypeError, ValueError)
_DLPACK_CPU, _DLPACK_CUDA = 1, 2  # DLDeviceType of dlpack.h


def imported(x: object, take: Callable[[Any], T], framework: str, refusals: tuple[type[Exception], ...] = ()) -> T:
    """`take(x)`, an array that shares the memory of `x`. Raises UsageError with the reason if that is impossible.

    `refusals` are errors of the framework, besides Python's own, that mean this.
    """
    source = _MXNetArray(x) if hasattr(x, "to_dlpack_for_read") else x  # type: ignore[arg-type]
    if not hasattr(source, "__dlpack__"):
        raise UsageError(f"a {type(x).__name__} does not support DLPack (`__dlpack__`): make it an array first.")
    try:
        with _lending(x):
            return take(source)
    except (*_REFUSALS, *refusals) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UsageError(
            f"{framework} cannot share the memory of this {type(x).__module__.split('.')[0]} array ({reason}): copy it "
            "first, through the host, as a contiguous NumPy array."
        ) from error


def settled(
    shared: T, here: D, there: D | None, copy: bool | None, duplicate: Callable[[T, D], T], move: Callable[[T, D], T]
) -> T:
    """What `from_dlpack(x, there, copy)` returns, once the memory of `x` is `shared` on the device `here`.

    `there` is None where no other device is asked for. `duplicate` and `move` are the framework's `copy` and `to`.
    Raises UsageError where it would have to move and copy=False.
    """
    if there is None or there == here:
        return duplicate(shared, here) if copy else shared
    if copy is False:
        raise UsageError(
            f"from_dlpack(copy=False) shares memory, and moving from {_name(here)} to {_name(there)} is a copy."
        )
    return move(shared, there)


@dataclass(frozen=True)
class GpuInfo:
    """One GPU as nvidia-smi reports it, memory in bytes, power in watts; None is a value the driver does not report."""

    index: int
    name: str
    uuid: str
    driver_version: str
    memory_total_bytes: int
    memory_used_bytes: int
    utilization_percent: int | None
    temperature_celsius: int | None
    power_w: float | None
    power_limit_w: float | None


def info() -> list[GpuInfo]:
    """What nvidia-smi reports for every GPU of the machine, visible to this process or not; [] without a driver.

    Source: the NVIDIA Management Library, through nvidia-ml-py.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        return [_gpu_info(pynvml, index, driver) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def _gpu_info(nvml: ModuleType, index: int, driver: str) -> GpuInfo:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)

    def ask(name: str, *arguments: object) -> Any:
        try:
            return getattr(nvml, name)(handle, *arguments)
        except nvml.NVMLError:
            return None

    utilization = ask("nvmlDeviceGetUtilizationRates")
    power, limit = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    return GpuInfo(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(ask("nvmlDeviceGetUUID") or ""),
        driver_version=driver,
        memory_total_bytes=int(memory.total),
        memory_used_bytes=int(memory.used),
        utilization_percent=None if utilization is None else int(utilization.gpu),
        temperature_celsius=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        power_w=None if power is None else power / 1000,
        power_limit_w=None if limit is None else limit / 1000,
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of one thing, in seconds. `clock` is "CUDA events" or "wall clock"."""

    times_s: tuple[float, ...]
    clock: str

    @property
    def median_s(self) -> float:
        return statistics.median(self.times_s)

    @property
    def spread_s(self) -> float:
        """Half the distance between the quartiles: half of the runs lie within median ± spread."""
        if len(self.times_s) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.times_s, n=4, method="inclusive")
        return (high - low) / 2

    def __str__(self) -> str:
        scale, unit = next((s, u) for s, u in _SCALES if self.median_s * s >= 1 or u == "ns")
        runs = f"{len(self.times_s)} run{'s' if len(self.times_s) != 1 else ''}"
        return f"{self.median_s * scale:.3g} {unit} ± {self.spread_s * scale:.2g} ({runs}, {self.clock})"


_SCALES: Sequence[tuple[float, str]] = ((1, "s"), (1e3, "ms"), (1e6, "us"), (1e9, "ns"))


class WallTimer:
    """Times blocks by the wall clock, for frameworks without public events: waits for the device before and after.

    `with t: ...` may be used many times, in one another too; `t.timing` holds all blocks. `wait` is the framework's
    synchronization.
    """

    clock = "wall clock, device synchronized"

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait
        self._begun_ns: list[int] = []  # of the blocks that are open, one in another
        self._times_s: list[float] = []

    def __enter__(self) -> WallTimer:
        self._wait()
        self._begun_ns.append(time.perf_counter_ns())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        begun_ns = self._begun_ns.pop()
        if error is None:
            self._wait()
            self._times_s.append((time.perf_counter_ns() - begun_ns) / 1e9)

    @property
    def timing(self) -> Timing:
        """All blocks so far. Raises UsageError where there was none."""
        if not self._times_s:
            raise UsageError(
                "the timer has timed nothing yet: use `with timer: ...` or `timer.measure(function)` first."
            )
        return Timing(tuple(self._times_s), self.clock)

    def measure(
        self, function: Callable[..., object], *arguments: object, warmup: int = 3, repeats: int = 20
    ) -> Timing:
        """Call `function(*arguments)` `warmup` times untimed, then `repeats` times timed."""
        for _ in range(warmup):
            function(*arguments)
        self._times_s.clear()
        for _ in range(repeats):
            with self:
                function(*arguments)
        return self.timing


@dataclass(frozen=True)
class FrameworkMemory:
    """The memory of a device as its framework tells it, in bytes; None is what the framework does not tell."""

    allocated_bytes: int | None
    peak_allocated_bytes: int | None
    free_bytes: int | None
    total_bytes: int | None


def host_memory() -> FrameworkMemory:
    """The main memory: what this process holds, and what is left."""
    import psutil

    used, machine = psutil.Process().memory_info().rss, psutil.virtual_memory()
    return FrameworkMemory(used, None, machine.available, machine.total)
