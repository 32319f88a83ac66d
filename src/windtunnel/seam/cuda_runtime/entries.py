"""The driver's functions as C has them: an address each, behind which Python answers."""

from __future__ import annotations

import _thread
import ctypes
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

from windtunnel import variables
from windtunnel.errors import UnsupportedError
from windtunnel.seam.cuda_runtime import errors
from windtunnel.seam.cuda_runtime.driver_api import NOT_SUPPORTED, DriverApi

KINDS = {"i": ctypes.c_int, "u": ctypes.c_uint, "q": ctypes.c_size_t}
SUFFIX = re.compile(r"(_v\d+)?(_pts[zd])?$")
UNKNOWN, NOT_FOUND = 999, 500
CONTEXTS_DESCRIBED = 13000
"""The version of CUDA from which on cuCtxCreate takes a description as well."""
Pointer = Any
"""A function of C's as ctypes has it, whose types its caller sets."""


class Entries:
    """Addresses of the driver's functions, made on their first use and kept; `driver` is who answers at the moment."""

    def __init__(self, driver: Callable[[], DriverApi | None]) -> None:
        self._driver = driver
        self._made: dict[str, tuple[Pointer, Pointer]] = {}

    def names(self, api: DriverApi) -> list[str]:
        """Every function's name."""
        return [*api.table, "cuCtxCreate_v4", "cuGetProcAddress"]

    def find(self, name: str) -> Pointer | None:
        """A function as ctypes loads it from a library, whatever its version; None for one that is not answered."""
        plain = SUFFIX.sub("", name)
        made = self._entry(plain)
        if made is None:
            return None
        prototype, kept = made
        found = prototype(ctypes.cast(kept, ctypes.c_void_p).value)
        found.__name__ = name
        return found

    def address(self, name: str) -> int:
        """The address of a function, 0 for one that is not answered."""
        made = self._entry(name)
        return 0 if made is None else int(ctypes.cast(made[1], ctypes.c_void_p).value or 0)

    def _entry(self, name: str) -> tuple[Pointer, Pointer] | None:
        if name not in self._made:
            kinds, call = self._described(name)
            if call is None:
                return None
            prototype = ctypes.CFUNCTYPE(ctypes.c_int, *(KINDS[kind] for kind in kinds))
            self._made[name] = prototype, prototype(call)
        return self._made[name]

    def _described(self, name: str) -> tuple[str, Callable[..., int] | None]:
        api = self._driver()
        if name == "cuGetProcAddress":
            return "qqiqq", self._lookup
        if name == "cuCtxCreate_v4":
            return "qqui", lambda out, _, flags, device: self._answer("cuCtxCreate", out, flags, device)
        if api is None or name not in api.table:
            return "", None
        return api.table[name].kinds, lambda *given: self._answer(name, *given)

    def _lookup(self, symbol: int, out: int, version: int, flags: int, status: int) -> int:
        name = SUFFIX.sub("", ctypes.string_at(symbol).decode())
        if name == "cuCtxCreate" and version >= CONTEXTS_DESCRIBED:
            name = "cuCtxCreate_v4"
        found = self.address(name)
        ctypes.memmove(out, found.to_bytes(8, "little"), 8)
        return errors.SUCCESS if found else NOT_FOUND

    def _answer(self, name: str, *arguments: int) -> int:
        """What a function gives. No exception passes through C: what the emulation refuses is said at once."""
        api = self._driver()
        if api is None:
            return errors.NO_DEVICE
        try:
            return api.answer(name, *arguments)
        except KeyboardInterrupt:
            _thread.interrupt_main()
        except UnsupportedError as error:
            variables.note_outcome(variables.REFUSED, str(error))
            print(f"windtunnel: {error}", file=sys.stderr)
            return NOT_SUPPORTED
        except Exception:  # noqa: BLE001  # C cannot be told
            traceback.print_exc()
        return UNKNOWN
