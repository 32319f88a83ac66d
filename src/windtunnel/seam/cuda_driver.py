"""Answers `ctypes.CDLL("libcuda.so.1")` with the emulated GPUs: what scripts ask the CUDA driver about devices.

Programs look at GPUs through the driver's C interface without any framework: how many, which, how much memory. So they
do through `libnvidia-ml.so.1`, whose functions are those of `seam.nvml`. There is
no such library where there is no driver, so the loaded object answers itself; a real one is never asked while the
emulation lasts. Functions that compute (kernels, modules, allocations) are not there: looking one up is the
`AttributeError` of an undefined symbol. Codes, attributes and rules: CUDA Driver API reference, sections 4.1 (types),
6.2 (initialization), 6.5 (devices), 6.8 (contexts).
"""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from windtunnel.machine.device import Device
from windtunnel.machine.machine import Machine
from windtunnel.seam.cuda_runtime import errors
from windtunnel.seam.patching import Patch
from windtunnel.seam.visible import visible

if TYPE_CHECKING:
    from ctypes import _CData

LIBRARIES = ("libcuda.so", "libcuda.so.1")
TWINS = {"libbitsandbytes_cuda": "libbitsandbytes_cpu.so"}
"""By how the names of libraries begin that need CUDA: the one in the same folder that does not."""
LOADED: list[str] = []
"""Where the library is that answers for the driver in C, once one is loaded (`seam/torch/extensions`)."""
NVML = ("libnvidia-ml.so", "libnvidia-ml.so.1")
HANDLE, NVML_HANDLE = 0, -1
"""What no library that was opened has for a handle."""
FIRST_PCI_BUS = 0x1B
"""The PCI bus of the first GPU; the others are on the ones after it."""
_texts: dict[str, ctypes.Array[ctypes.c_char]] = {}
"""Texts whose addresses are handed out."""

ATTRIBUTES: dict[int, Callable[[Device], int]] = {
    1: lambda device: 1024,  # CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
    8: lambda device: device.gpu.shared_memory_per_block_bytes,
    10: lambda device: 32,  # WARP_SIZE
    13: lambda device: device.gpu.clock_mhz * 1000,
    16: lambda device: device.gpu.sm_count,
    33: lambda device: FIRST_PCI_BUS + device.physical,  # PCI_BUS_ID
    36: lambda device: device.gpu.memory_clock_mhz * 1000,
    38: lambda device: device.gpu.l2_bytes,
    39: lambda device: device.gpu.max_threads_per_sm,
    41: lambda device: 1,  # UNIFIED_ADDRESSING
    75: lambda device: device.gpu.compute_capability[0],
    76: lambda device: device.gpu.compute_capability[1],
    81: lambda device: device.gpu.shared_memory_per_sm_bytes,
    82: lambda device: device.gpu.registers_per_sm,
    97: lambda device: device.gpu.shared_memory_per_block_optin_bytes,
}
"""CUdevice_attribute: those that the catalogue of GPUs has."""


class _Failed(Exception):  # noqa: N818 - a return code, not an error that anybody sees
    def __init__(self, code: int) -> None:
        self.code = code


class DriverFunctions:
    """The functions of one process's driver; `devices` are those that it sees, once it is initialized."""

    def __init__(self, machine: Machine, cuda_version: tuple[int, int]) -> None:
        self.machine = machine
        self.version = 1000 * cuda_version[0] + 10 * cuda_version[1]
        self.devices: list[Device] | None = None
        self.current: Device | None = None

    def function(self, name: str) -> Callable[..., int]:
        """The C function of that name, whatever its version suffix.

        Raises:
            AttributeError: it is none of those that are answered.
        """
        plain = name.rsplit("_v", 1)[0]
        known = FUNCTIONS.get(plain)
        if known is None:
            raise AttributeError(f"{LIBRARIES[1]}: undefined symbol: {name}")

        def call(*arguments: object) -> int:
            try:
                if plain not in WITHOUT_INIT:
                    self.check()
                known(self, *arguments)
            except _Failed as failed:
                return failed.code
            return 0

        return call

    def check(self) -> None:
        """Refuse before `cuInit`; a framework that has used CUDA in this process has called it."""
        if self.devices is None:
            if not any(device.context for device in self.machine.installed):
                raise _Failed(errors.NOT_INITIALIZED)
            self.devices = list(self.machine.devices)

    def device(self, number: object) -> Device:
        """The device of an ordinal, which is its handle as well."""
        index, devices = _number(number), self.devices or []
        if not 0 <= index < len(devices):
            raise _Failed(errors.INVALID_DEVICE)
        return devices[index]


def _number(argument: object) -> int:
    return int(getattr(argument, "value", argument) or 0)  # type: ignore[call-overload, no-any-return]  # whatever has a value


def _write(out: object, value: _CData) -> None:
    """Put a ctypes value where a pointer points: `byref`, `pointer`, an array or an address."""
    if out is None:
        raise _Failed(errors.INVALID_VALUE)
    ctypes.memmove(out, ctypes.byref(value), ctypes.sizeof(value))  # type: ignore[arg-type]  # a pointer of the caller's


def _text(out: object, size: object, text: str) -> None:
    """Put a text into a buffer, cut to its size, which counts the closing zero."""
    room = _number(size)
    if room <= 0:
        raise _Failed(errors.INVALID_VALUE)
    _write(out, ctypes.create_string_buffer(text.encode()[: room - 1]))


def _init(driver: DriverFunctions, flags: object) -> None:
    found = [driver.machine.installed[index] for index in visible(driver.machine.installed)]
    if not found:
        raise _Failed(errors.NO_DEVICE)
    driver.devices = found


def _get(driver: DriverFunctions, out: object, ordinal: object) -> None:
    driver.device(ordinal)
    _write(out, ctypes.c_int(_number(ordinal)))


def _attribute(driver: DriverFunctions, out: object, attribute: object, device: object) -> None:
    found = ATTRIBUTES.get(_number(attribute))
    if found is None:
        raise _Failed(errors.INVALID_VALUE)
    _write(out, ctypes.c_int(found(driver.device(device))))


def _capability(driver: DriverFunctions, major: object, minor: object, device: object) -> None:
    for out, part in zip((major, minor), driver.device(device).gpu.compute_capability, strict=True):
        _write(out, ctypes.c_int(part))


def _uuid(driver: DriverFunctions, out: object, device: object) -> None:
    raw = uuid.UUID(driver.device(device).uuid.removeprefix("GPU-")).bytes
    _write(out, ctypes.create_string_buffer(raw, len(raw)))


def _create_context(driver: DriverFunctions, out: object, flags: object, device: object) -> None:
    driver.current = driver.device(device)
    _write(out, ctypes.c_void_p(1 + _number(device)))


def _end_context(driver: DriverFunctions, context: object) -> None:
    driver.current = None


def _memory(driver: DriverFunctions, free: object, total: object) -> None:
    if driver.current is None:
        raise _Failed(errors.INVALID_CONTEXT)
    info = driver.current.driver.info()
    _write(free, ctypes.c_size_t(info.free))
    _write(total, ctypes.c_size_t(info.total))


def _said(say: Callable[[errors.Error], str]) -> Callable[[DriverFunctions, object, object], None]:
    def answer(driver: DriverFunctions, code: object, out: object) -> None:
        error = errors.table().get(_number(code))
        if error is None:
            raise _Failed(errors.INVALID_VALUE)
        text = say(error)
        kept = _texts.setdefault(text, ctypes.create_string_buffer(text.encode()))
        _write(out, ctypes.c_void_p(ctypes.addressof(kept)))

    return answer


FUNCTIONS: dict[str, Callable[..., None]] = {
    "cuInit": _init,
    "cuDriverGetVersion": lambda driver, out: _write(out, ctypes.c_int(driver.version)),
    "cuGetErrorName": _said(lambda error: error.driver_name),
    "cuGetErrorString": _said(lambda error: error.text),
    "cuDeviceGetCount": lambda driver, out: _write(out, ctypes.c_int(len(driver.devices or ()))),
    "cuDeviceGet": _get,
    "cuDeviceGetName": lambda driver, out, size, device: _text(out, size, driver.device(device).gpu.name),
    "cuDeviceGetUuid": _uuid,
    "cuDeviceTotalMem": lambda driver, out, device: _write(
        out, ctypes.c_size_t(driver.device(device).gpu.memory_bytes)
    ),
    "cuDeviceComputeCapability": _capability,
    "cuDeviceGetAttribute": _attribute,
    "cuCtxCreate": _create_context,
    "cuCtxDetach": _end_context,
    "cuCtxDestroy": _end_context,
    "cuMemGetInfo": _memory,
}
WITHOUT_INIT = frozenset({"cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString"})
"""Functions that do not ask for `cuInit` first."""


RUNTIME = "libcudart.so"
"""NVIDIA's runtime, where a toolkit is installed. Opened for all libraries, as cuda-python does it for Numba, it would
stand before ours in extensions that come later."""


def _for_the_cpu(name: object) -> object:
    """The library for the CPU that lies beside one for CUDA, where a package brings both."""
    folder, file = os.path.split(name) if isinstance(name, str) else ("", "")
    for prefix, twin in TWINS.items():
        if file.startswith(prefix) and os.path.exists(found := os.path.join(folder, twin)):
            return found
    return name


def patches(machine: Machine, cuda_version: tuple[int, int], nvml: Callable[[str], object]) -> list[Patch]:
    """What to replace in ctypes: how a library is opened, and how a function is found in it, in NVML's by `nvml`."""
    answers = {HANDLE: DriverFunctions(machine, cuda_version).function, NVML_HANDLE: nvml}
    library = ctypes.CDLL
    open_library: Callable[..., None] = library.__init__
    find = library.__getitem__

    def opened(self: ctypes.CDLL, name: object, *args: int, **kwargs: int) -> None:
        file = os.path.basename(name) if isinstance(name, str) else ""
        if file in LIBRARIES and LOADED:
            open_library(self, LOADED[-1], *args, **kwargs)
        elif file in LIBRARIES or file in NVML:
            self._name, self._handle = str(name), HANDLE if file in LIBRARIES else NVML_HANDLE
        elif file.startswith(RUNTIME):
            mode, *others = args or (kwargs.pop("mode", ctypes.DEFAULT_MODE),)
            open_library(self, name, mode & ~ctypes.RTLD_GLOBAL, *others, **kwargs)
        else:
            open_library(self, _for_the_cpu(name), *args, **kwargs)

    def found(self: ctypes.CDLL, name_or_ordinal: str) -> object:
        answer = answers.get(self._handle)
        return find(self, name_or_ordinal) if answer is None else answer(name_or_ordinal)

    return [Patch(library, "__init__", opened), Patch(library, "__getitem__", found)]
