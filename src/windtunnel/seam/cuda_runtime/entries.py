"""Functions of NVIDIA's libraries as C has them: an address each, behind which Python answers."""

from __future__ import annotations

import _thread
import ctypes
import re
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from windtunnel import variables
from windtunnel.errors import UnsupportedError
from windtunnel.seam.cuda_runtime import errors

if TYPE_CHECKING:
    from ctypes import _CFunctionType

KINDS = {"i": ctypes.c_int, "u": ctypes.c_uint, "q": ctypes.c_size_t}
SUFFIX = re.compile(r"(_v\d+)?(_pts[zd])?$")


class Export(NamedTuple):
    """A function: the kinds of its arguments ("i" and "u": 32 bits, "q": a pointer, a handle or a size), its answer."""

    kinds: str
    answer: Callable[..., int]


class LibraryApi(Protocol):
    """A library's functions."""

    table: dict[str, Export]
    unsupported: int
    """The error of what is refused."""
    failed: int
    """The error of everything else."""

    def answer(self, name: str, *arguments: int) -> int:
        """What a call gives."""


class Entries:
    """Addresses of a library's functions, made on their first use and kept; `api` is who answers at the moment."""

    def __init__(self, api: Callable[[], LibraryApi | None]) -> None:
        self._api = api
        self._made: dict[str, tuple[type[_CFunctionType], _CFunctionType]] = {}

    def find(self, name: str) -> _CFunctionType | None:
        """A function as ctypes loads it from a library, whatever its version; None for one that is not answered."""
        made = self._entry(SUFFIX.sub("", name))
        if made is None:
            return None
        prototype, kept = made
        found = prototype(ctypes.cast(kept, ctypes.c_void_p).value or 0)
        found.__name__ = name  # type: ignore[attr-defined]  # which ctypes gives those of libraries
        return found

    def address(self, name: str) -> int:
        """The address of a function, 0 for one that is not answered."""
        made = self._entry(name)
        return 0 if made is None else int(ctypes.cast(made[1], ctypes.c_void_p).value or 0)

    def _entry(self, name: str) -> tuple[type[_CFunctionType], _CFunctionType] | None:
        if name not in self._made:
            api = self._api()
            if api is None or name not in api.table:
                return None
            prototype = ctypes.CFUNCTYPE(ctypes.c_ssize_t, *(KINDS[kind] for kind in api.table[name].kinds))
            self._made[name] = prototype, prototype(partial(self._answer, name))
        return self._made[name]

    def _answer(self, name: str, *arguments: int) -> int:
        """What a function gives. No exception passes through C: what the emulation refuses is said at once."""
        api = self._api()
        if api is None:
            return errors.NO_DEVICE
        try:
            return api.answer(name, *arguments)
        except KeyboardInterrupt:
            _thread.interrupt_main()
        except UnsupportedError as error:
            variables.note_outcome(variables.REFUSED, str(error))
            print(f"windtunnel: {error}", file=sys.stderr)
            return api.unsupported
        except Exception:  # noqa: BLE001  # C cannot be told
            traceback.print_exc()
        return api.failed
