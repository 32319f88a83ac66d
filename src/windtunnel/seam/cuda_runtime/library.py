"""The stub library in this process: what it asks reaches the driver, and what the driver raises reaches the program."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

RAISED = -(1 << 63)
ANSWER = ctypes.CFUNCTYPE(ctypes.c_longlong, ctypes.c_char_p, ctypes.POINTER(ctypes.c_longlong), ctypes.c_int)


class Library:
    """The loaded library, and who answers it at the moment."""

    def __init__(self, path: Path, answer: Callable[[str, tuple[int, ...]], int]) -> None:
        self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self.answer = answer
        self.raised: BaseException | None = None
        self._callback = ANSWER(self._asked)
        self._library.windtunnel_begin(self._callback)

    def lost(self, error: int) -> None:
        """From now on every call gives this error (0: no more)."""
        self._library.windtunnel_lost(error)

    def place(self, storage: int, address: int) -> None:
        """Make a PyTorch storage's data begin at an address."""
        self._library.windtunnel_place(ctypes.c_void_p(storage), ctypes.c_void_p(address))

    def _asked(self, name: bytes, arguments: ctypes._Pointer[ctypes.c_longlong], count: int) -> int:
        try:
            if name == b"restore":
                return self._restore()
            return self.answer(name.decode(), tuple(arguments[:count]))
        except BaseException as error:  # noqa: BLE001  # it goes on in the program, through C++
            self.raised = error
            return RAISED

    def _restore(self) -> int:
        """The address of what the driver raised, with a reference that C++ takes over."""
        error, self.raised = self.raised, None
        made = error if error is not None else RuntimeError("the emulation of CUDA failed")
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
        return id(made)
