"""The emulated driver's library: for ctypes an object with its functions, for C libraries one that they can load."""

from __future__ import annotations

import ctypes
import weakref
from functools import cache

from windtunnel.compiler import stubs
from windtunnel.seam import cuda_driver
from windtunnel.seam.cuda_runtime.driver_api import DriverApi
from windtunnel.seam.cuda_runtime.entries import Entries, Pointer
from windtunnel.seam.torch.extensions.libraries import current, process_of
from windtunnel.seam.torch.state.state import State

_of: weakref.WeakKeyDictionary[State, DriverApi] = weakref.WeakKeyDictionary()


def driver() -> DriverApi | None:
    """The driver of the emulation that is on."""
    state = current()
    if state is None:
        return None
    found = _of.get(state)
    if found is None:
        devices = cuda_driver.Driver(state.machine, state.cuda_version)
        found = _of[state] = DriverApi(process_of(state).driver, devices)
    return found


ENTRIES = Entries(driver)


class Library:
    """`libcuda.so.1` as ctypes has it: its functions are attributes."""

    _name = cuda_driver.LIBRARIES[1]

    def __getattr__(self, name: str) -> Pointer:
        found = ENTRIES.find(name)
        if found is None:
            raise AttributeError(f"{self._name}: undefined symbol: {name}")
        setattr(self, name, found)
        return found


@cache
def load() -> ctypes.CDLL:
    """Load the library under the driver's name: whoever opens that in C from now on gets this one.

    Raises:
        UnsupportedError: there is no clang to build it.
    """
    api = driver()
    assert api is not None
    names = ENTRIES.names(api)
    exported = [*names, *(f"{name}_v{number}" for name in names for number in (2, 3) if not name.endswith("_v4"))]
    library = ctypes.CDLL.__new__(ctypes.CDLL)
    path = str(stubs.library(cuda_driver.LIBRARIES[1], exported))
    ctypes.CDLL.__init__(library, path, mode=ctypes.RTLD_GLOBAL)
    addresses = [ENTRIES.address(name.partition("_v")[0] if name not in names else name) for name in exported]
    library.windtunnel_functions((ctypes.c_void_p * len(addresses))(*addresses))
    return library
