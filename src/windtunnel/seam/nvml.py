"""Answers NVML with the emulated GPUs, at the height of the driver's library.

pynvml (package nvidia-ml-py) is a thin layer over `libnvidia-ml.so`: each of its functions looks up a C function, calls
it with ctypes objects and checks the return code. Only the look-up is replaced, so pynvml's own Python, its structures
and its errors stay, also for names that a program imported before. `seam.cuda_driver` gives those who open the library
themselves the same functions. What no answer is known for is "Not Supported", as on a real GPU that
lacks a feature; a real driver is never asked while the emulation lasts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ctypes import _CData

_MIB = 1 << 20
_HANDLES = 0x1000
"""The value of the first device's handle; the next one's is one more. pynvml never follows it."""
_ARCHITECTURES = {(3, 7): 2, (6, 0): 4, (7, 0): 5, (7, 5): 6, (8, 0): 7, (8, 6): 7, (8, 9): 8, (9, 0): 9}
_ERROR_TEXTS = {1: b"Uninitialized", 2: b"Invalid Argument", 3: b"Not Supported", 6: b"Not Found", 15: b"GPU is lost"}
_UNINITIALIZED, _INVALID_ARGUMENT, _NOT_SUPPORTED, _NOT_FOUND, _INSUFFICIENT_SIZE, _LOST = 1, 2, 3, 6, 7, 15


class Number(Protocol):
    """A number of C's."""

    value: int


class Text(Protocol):
    """A buffer for a text."""

    value: bytes


class DeviceProcess(Protocol):
    """A process on a device."""

    @property
    def pid(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def used_mib(self) -> int: ...


class MonitoredDevice(Protocol):
    """What is asked of a device: `windtunnel.reports.smi.SmiDevice` has it."""

    @property
    def name(self) -> str: ...
    @property
    def uuid(self) -> str: ...
    @property
    def bus_id(self) -> str: ...
    @property
    def memory_total_mib(self) -> int: ...
    @property
    def memory_used_mib(self) -> int: ...
    @property
    def memory_free_mib(self) -> int: ...
    @property
    def memory_reserved_mib(self) -> int: ...
    @property
    def utilization_gpu(self) -> int: ...
    @property
    def utilization_memory(self) -> int: ...
    @property
    def temperature(self) -> int: ...
    @property
    def power_w(self) -> float: ...
    @property
    def power_limit_w(self) -> float: ...
    @property
    def compute_capability(self) -> tuple[int, int]: ...
    @property
    def clock_sm_mhz(self) -> int: ...
    @property
    def clock_sm_max_mhz(self) -> int: ...
    @property
    def clock_memory_mhz(self) -> int: ...
    @property
    def pcie_generation(self) -> int: ...
    @property
    def fan_percent(self) -> int | None: ...
    @property
    def persistence(self) -> bool: ...
    @property
    def ecc(self) -> bool: ...
    @property
    def mig(self) -> bool: ...
    @property
    def performance_state(self) -> int: ...
    @property
    def processes(self) -> Sequence[DeviceProcess]: ...
    @property
    def uncorrected_errors(self) -> int: ...
    @property
    def lost(self) -> bool: ...


class Host(Protocol):
    """The machine: its devices and its driver, as they are now."""

    @property
    def devices(self) -> Sequence[MonitoredDevice]: ...
    @property
    def driver_version(self) -> str: ...
    @property
    def cuda_version(self) -> str: ...


def patches(library: Nvml) -> list[tuple[ModuleType, str, object]]:
    """What to replace in pynvml, as (module, name, value); empty when nvidia-ml-py is not installed."""
    try:
        import pynvml
    except ImportError:
        return []
    return [
        (pynvml, "_LoadNvmlLibrary", lambda: None),
        (pynvml, "_nvmlGetFunctionPointer", library.function),
    ]


class _Refused(Exception):  # noqa: N818 - a return code, not an error that anybody sees
    def __init__(self, code: int) -> None:
        self.code = code


class Nvml:
    """The C library: `function(name)` gives a callable that fills what it is handed and returns a code.

    `host` is called at each question, so that the answers follow the emulation.
    """

    def __init__(self, host: Callable[[], Host]) -> None:
        self._host = host
        self._users = 0

    def function(self, name: str) -> Callable[..., object]:
        """The C function of that name, whatever its version suffix."""
        plain = name.rsplit("_v", 1)[0]
        if plain == "nvmlErrorString":
            return lambda code: _ERROR_TEXTS.get(code, b"Unknown Error")
        if plain in ("nvmlInit", "nvmlInitWithFlags"):
            return lambda *_: self._init()
        if plain == "nvmlShutdown":
            return lambda: self._shutdown()
        system, device = _SYSTEM.get(plain), _DEVICE.get(plain)

        def call(*arguments: object) -> int:
            if not self._users:
                return _UNINITIALIZED
            try:
                if system is not None:
                    system(self._host(), *map(_target, arguments))
                elif device is not None:
                    host = self._host()
                    device(_device(host, arguments[0]), *map(_target, arguments[1:]))
                else:
                    return _NOT_SUPPORTED
            except _Refused as refused:
                return refused.code
            return 0

        return call

    def _init(self) -> int:
        self._users += 1
        return 0

    def _shutdown(self) -> int:
        if not self._users:
            return _UNINITIALIZED
        self._users -= 1
        return 0


def _target(argument: object) -> object:
    """The object behind `byref(object)` or `pointer(object)`; a plain number as one of C's."""
    if isinstance(argument, int):
        return ctypes.c_uint(argument)
    return getattr(argument, "_obj" if hasattr(argument, "_obj") else "contents", argument)


def _device(host: Host, handle: object) -> MonitoredDevice:
    address = ctypes.cast(handle, ctypes.c_void_p).value if handle else None  # type: ignore[arg-type]
    index = (address or 0) - _HANDLES
    if not 0 <= index < len(host.devices):
        raise _Refused(_INVALID_ARGUMENT)
    if host.devices[index].lost:
        raise _Refused(_LOST)
    return host.devices[index]


def _point(handle: _CData, index: int) -> None:
    """Make a handle (a ctypes pointer) stand for the device of that index."""
    ctypes.memmove(
        ctypes.byref(handle), ctypes.byref(ctypes.c_void_p(_HANDLES + index)), ctypes.sizeof(ctypes.c_void_p)
    )


def _fill(structure: ctypes.Structure, **values: object) -> None:
    """Set the fields that this version of the structure has."""
    for field in structure._fields_:
        if field[0] in values:
            setattr(structure, field[0], values[field[0]])


def _text(buffer: Text, size: Number, text: str) -> None:
    data = text.encode()
    if len(data) >= size.value:
        raise _Refused(_INSUFFICIENT_SIZE)
    buffer.value = data


# ------------------------------------------------------------------ questions about the system


def _cuda_version(host: Host, out: Number) -> None:
    major, minor = (int(part) for part in host.cuda_version.split(".")[:2])
    out.value = 1000 * major + 10 * minor


def _count(host: Host, out: Number) -> None:
    out.value = len(host.devices)


def _by_index(host: Host, index: Number, out: _CData) -> None:
    if index.value >= len(host.devices):
        raise _Refused(_INVALID_ARGUMENT)
    if host.devices[index.value].lost:
        raise _Refused(_LOST)
    _point(out, index.value)


def _by_text(of: Callable[[MonitoredDevice], set[str]]) -> Callable[[Host, Text, _CData], None]:
    def find(host: Host, text: Text, out: _CData) -> None:
        wanted = text.value.decode().lower()
        for index, device in enumerate(host.devices):
            if wanted in of(device):
                _point(out, index)
                return
        raise _Refused(_NOT_FOUND)

    return find


def _process_name(host: Host, pid: Number, buffer: Text, size: Number) -> None:
    for device in host.devices:
        for process in device.processes:
            if process.pid == pid.value:
                _text(buffer, size, process.name)
                return
    raise _Refused(_NOT_FOUND)


_SYSTEM: dict[str, Callable[..., None]] = {
    "nvmlSystemGetDriverVersion": lambda host, buffer, size: _text(buffer, size, host.driver_version),
    "nvmlSystemGetNVMLVersion": lambda host, buffer, size: _text(buffer, size, f"11.{host.driver_version}"),
    "nvmlSystemGetCudaDriverVersion": _cuda_version,
    "nvmlSystemGetProcessName": _process_name,
    "nvmlDeviceGetCount": _count,
    "nvmlDeviceGetHandleByIndex": _by_index,
    "nvmlDeviceGetHandleByUUID": _by_text(lambda device: {device.uuid.lower()}),
    "nvmlDeviceGetHandleByPciBusId": _by_text(lambda device: {device.bus_id.lower(), device.bus_id.lower()[4:]}),
}

# ------------------------------------------------------------------ questions about a device


def _number(get: Callable[[MonitoredDevice], int | None]) -> Callable[..., None]:
    """A question whose answer is the last argument; None is "Not Supported"."""

    def answer(device: MonitoredDevice, *arguments: Number) -> None:
        value = get(device)
        if value is None:
            raise _Refused(_NOT_SUPPORTED)
        arguments[-1].value = value

    return answer


def _both(get: Callable[[MonitoredDevice], int | None]) -> Callable[[MonitoredDevice, Number, Number], None]:
    """A question for a current and a pending state, which are the same here."""

    def answer(device: MonitoredDevice, current: Number, pending: Number) -> None:
        value = get(device)
        if value is None:
            raise _Refused(_NOT_SUPPORTED)
        current.value = pending.value = value

    return answer


def _memory(device: MonitoredDevice, out: ctypes.Structure) -> None:
    total, reserved = device.memory_total_mib * _MIB, device.memory_reserved_mib * _MIB
    free = device.memory_free_mib * _MIB
    has_reserved = any(field[0] == "reserved" for field in out._fields_)
    used = device.memory_used_mib * _MIB if has_reserved else total - free
    _fill(out, total=total, reserved=reserved, free=free, used=used)


def _pci(device: MonitoredDevice, out: ctypes.Structure) -> None:
    domain, bus, rest = device.bus_id.split(":")
    _fill(
        out,
        busId=device.bus_id.encode(),
        busIdLegacy=device.bus_id[4:].encode(),
        domain=int(domain, 16),
        bus=int(bus, 16),
        device=int(rest.split(".")[0], 16),
    )


def _clock(device: MonitoredDevice, kind: object, *out: Number) -> None:
    memory = getattr(kind, "value", kind) == 2
    out[-1].value = device.clock_memory_mhz if memory else device.clock_sm_mhz


def _max_clock(device: MonitoredDevice, kind: object, out: Number) -> None:
    memory = getattr(kind, "value", kind) == 2
    out.value = device.clock_memory_mhz if memory else device.clock_sm_max_mhz


def _capability(device: MonitoredDevice, major: Number, minor: Number) -> None:
    major.value, minor.value = device.compute_capability


def _processes(device: MonitoredDevice, count: Number, array: Iterable[ctypes.Structure] | None) -> None:
    room, found = count.value, device.processes
    count.value = len(found)
    if found and (array is None or room < len(found)):
        raise _Refused(_INSUFFICIENT_SIZE)
    for slot, process in zip(array or (), found, strict=False):
        everywhere = 0xFFFFFFFF  # "no GPU instance": the device is not partitioned
        _fill(slot, pid=process.pid, usedGpuMemory=process.used_mib * _MIB, gpuInstanceId=everywhere)
        _fill(slot, computeInstanceId=everywhere)


def _no_processes(device: MonitoredDevice, count: Number, array: object) -> None:
    count.value = 0


def _ecc_errors(device: MonitoredDevice, kind: object, *rest: Number) -> None:
    if not device.ecc:
        raise _Refused(_NOT_SUPPORTED)
    rest[-1].value = device.uncorrected_errors if getattr(kind, "value", kind) == 1 else 0


def _idle_engine(device: MonitoredDevice, used: Number, period_us: Number) -> None:
    used.value, period_us.value = 0, 1_000_000


def _limits(device: MonitoredDevice, low: Number, high: Number) -> None:
    low.value, high.value = round(500 * device.power_limit_w), round(1000 * device.power_limit_w)


def _limit(device: MonitoredDevice) -> int:
    return round(1000 * device.power_limit_w)


def _zero(device: MonitoredDevice) -> int:
    return 0


def _index(device: MonitoredDevice) -> int:
    return int(getattr(device, "index", 0))


_DEVICE: dict[str, Callable[..., None]] = {
    "nvmlDeviceGetName": lambda device, buffer, size: _text(buffer, size, device.name),
    "nvmlDeviceGetUUID": lambda device, buffer, size: _text(buffer, size, device.uuid),
    "nvmlDeviceGetIndex": _number(_index),
    "nvmlDeviceGetMinorNumber": _number(_index),
    "nvmlDeviceGetPciInfo": _pci,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetUtilizationRates": lambda device, out: _fill(
        out, gpu=device.utilization_gpu, memory=device.utilization_memory
    ),
    "nvmlDeviceGetEncoderUtilization": _idle_engine,
    "nvmlDeviceGetDecoderUtilization": _idle_engine,
    "nvmlDeviceGetTemperature": _number(lambda device: device.temperature),
    "nvmlDeviceGetTemperatureV": lambda device, out: _fill(out, temperature=device.temperature),
    "nvmlDeviceGetTemperatureThreshold": _number(lambda device: 90),
    "nvmlDeviceGetFanSpeed": _number(lambda device: device.fan_percent),
    "nvmlDeviceGetPerformanceState": _number(lambda device: device.performance_state),
    "nvmlDeviceGetPowerState": _number(lambda device: device.performance_state),
    "nvmlDeviceGetPowerUsage": _number(lambda device: round(1000 * device.power_w)),
    "nvmlDeviceGetPowerManagementMode": _number(lambda device: 1),
    "nvmlDeviceGetPowerManagementLimit": _number(_limit),
    "nvmlDeviceGetPowerManagementDefaultLimit": _number(_limit),
    "nvmlDeviceGetPowerManagementLimitConstraints": _limits,
    "nvmlDeviceGetEnforcedPowerLimit": _number(_limit),
    "nvmlDeviceGetClockInfo": _clock,
    "nvmlDeviceGetClock": _clock,
    "nvmlDeviceGetApplicationsClock": _clock,
    "nvmlDeviceGetMaxClockInfo": _max_clock,
    "nvmlDeviceGetPersistenceMode": _number(lambda device: int(device.persistence)),
    "nvmlDeviceGetComputeMode": _number(_zero),
    "nvmlDeviceGetDisplayMode": _number(_zero),
    "nvmlDeviceGetDisplayActive": _number(_zero),
    "nvmlDeviceGetMultiGpuBoard": _number(_zero),
    "nvmlDeviceGetEccMode": _both(lambda device: 1 if device.ecc else None),
    "nvmlDeviceGetTotalEccErrors": _ecc_errors,
    "nvmlDeviceGetMemoryErrorCounter": _ecc_errors,
    "nvmlDeviceGetMigMode": _both(lambda device: None if device.compute_capability < (8, 0) else int(device.mig)),
    "nvmlDeviceGetCudaComputeCapability": _capability,
    "nvmlDeviceGetArchitecture": _number(lambda device: _ARCHITECTURES.get(device.compute_capability, 10)),
    "nvmlDeviceGetCurrPcieLinkGeneration": _number(lambda device: device.pcie_generation),
    "nvmlDeviceGetMaxPcieLinkGeneration": _number(lambda device: device.pcie_generation),
    "nvmlDeviceGetCurrPcieLinkWidth": _number(lambda device: 16),
    "nvmlDeviceGetMaxPcieLinkWidth": _number(lambda device: 16),
    "nvmlDeviceGetComputeRunningProcesses": _processes,
    "nvmlDeviceGetGraphicsRunningProcesses": _no_processes,
    "nvmlDeviceGetMPSComputeRunningProcesses": _no_processes,
}
