"""The emulated driver and NVRTC as libraries: for ctypes an object, for C one that the loader finds by name."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType

from windtunnel import exits
from windtunnel.compiler import clang, stubs
from windtunnel.seam import cuda_driver, foreign_kernels
from windtunnel.seam.cuda_runtime import errors
from windtunnel.seam.cuda_runtime.driver_api import CREATE_DESCRIBED, DriverApi
from windtunnel.seam.cuda_runtime.entries import SUFFIX, Entries, Export
from windtunnel.seam.cuda_runtime.memory import put
from windtunnel.seam.cuda_runtime.nvrtc import Nvrtc
from windtunnel.seam.patching import Patch
from windtunnel.seam.torch.extensions.libraries import current, process_of
from windtunnel.seam.torch.state.state import State

DESCRIBED_FROM = 13000
_of: weakref.WeakKeyDictionary[State, DriverApi] = weakref.WeakKeyDictionary()


def driver() -> DriverApi | None:
    """The driver of the emulation that is on."""
    state = current()
    if state is None:
        return None
    found = _of.get(state)
    if found is None:
        devices = cuda_driver.DriverFunctions(state.machine, state.cuda_version)
        found = _of[state] = DriverApi(process_of(state).driver, devices)
        found.table["cuGetProcAddress"] = Export("qqiqq", _lookup)
    return found


ENTRIES = Entries(driver)
_loaded: dict[str, ctypes.CDLL] = {}


def _lookup(symbol: int, out: int, version: int, flags: int, status: int) -> int:
    """cuGetProcAddress: the function of a name as a version of CUDA has it."""
    name = SUFFIX.sub("", ctypes.string_at(symbol).decode())
    name = CREATE_DESCRIBED if name == "cuCtxCreate" and version >= DESCRIBED_FROM else name
    found = ENTRIES.address(name)
    library = _loaded.get(cuda_driver.LIBRARIES[1])
    if found and library is not None:  # whose functions outlive Python
        found = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    put(out, found)
    return 0 if found else errors.NOT_FOUND


class DriverLibrary:
    """`libcuda.so.1` as ctypes has it: its functions are attributes."""

    _name = cuda_driver.LIBRARIES[1]

    def __getattr__(self, name: str) -> object:
        found = ENTRIES.find(name)
        if found is None:
            raise AttributeError(f"{self._name}: undefined symbol: {name}")
        setattr(self, name, found)
        return found


def _load(name: str, entries: Entries, exported: Sequence[tuple[str, str]]) -> str:
    """Load a library under a name, with functions each under a name of its own; returns its path."""
    path = str(stubs.library(name, [shown for shown, _ in exported]))
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    addresses = [entries.address(function) for _, function in exported]
    library.windtunnel_functions((ctypes.c_void_p * len(addresses))(*addresses))
    exits.at_last(library.windtunnel_end)
    _loaded[name] = library
    return path


@cache
def load_driver() -> str:
    """Load the driver: whoever opens `libcuda.so.1` in C from now on gets this one. Returns its path.

    Raises:
        UnsupportedError: there is no clang to build it.
    """
    api = driver()
    names = [] if api is None else list(api.table)
    versions = [(f"{name}_v{number}", name) for name in names for number in (2, 3) if name != CREATE_DESCRIBED]
    return _load(cuda_driver.LIBRARIES[1], ENTRIES, [*((name, name) for name in names), *versions])


@cache
def load_nvrtc(version: tuple[int, int]) -> str:
    """The same of NVRTC, for one version of CUDA."""
    state = current()
    capability = (8, 0) if state is None else state.machine.devices[0].gpu.compute_capability
    api = Nvrtc(version, capability)
    entries = Entries(lambda: api)
    _kept.append(entries)
    return _load(f"libnvrtc.so.{version[0]}", entries, [(name, name) for name in api.table])


_kept: list[Entries] = []


def _bindings(module: ModuleType) -> list[Patch]:
    """cuda-python finds both libraries loaded when it looks for them."""
    if not clang.available():
        return foreign_kernels.cuda_python(module)
    major = int(module.__version__.partition(".")[0])
    load_nvrtc((major, 0 if major > 12 else 9))
    cuda_driver.LOADED.append(load_driver())
    return []


def _runtime(module: ModuleType) -> list[Patch]:
    """cuda-python's runtime, linked with a part of NVIDIA's that needs its own driver: its functions of devices."""
    api = driver()
    if api is None or not clang.available():
        return []
    runtime = api.runtime

    def asking(call: Callable[..., int], results: int) -> Callable[..., tuple[object, ...]]:
        def ask(*given: int) -> tuple[object, ...]:
            found = [ctypes.c_int() for _ in range(results)]
            code = call(*(ctypes.addressof(one) for one in found), *map(int, given))
            error = module.cudaError_t(code)
            return (error, *(None if code else one.value for one in found))

        return ask

    return [
        Patch(module, "cudaDeviceSynchronize", asking(runtime.synchronize, 0)),
        Patch(module, "cudaStreamSynchronize", asking(runtime.streams.synchronize, 0)),
        Patch(module, "cudaGetDeviceCount", asking(runtime.device_count, 1)),
        Patch(module, "cudaGetDevice", asking(runtime.get_device, 1)),
        Patch(module, "cudaSetDevice", asking(runtime.set_device, 0)),
        Patch(module, "cudaDeviceGetAttribute", asking(runtime.attribute, 1)),
    ]


MODULES: dict[str, Callable[[ModuleType], list[Patch]]] = {
    "cuda.bindings": _bindings,
    "cuda.bindings.runtime": _runtime,
}
"""What is loaded once a module is imported."""
