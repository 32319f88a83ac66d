"""The C slot through which NumPy reads an object's bytes without asking its framework."""

from __future__ import annotations

import ctypes

from windtunnel.errors import InstallError


class BufferSlot:
    """A type's buffer interface, as an attribute that a patch can empty.

    Arrays of a real GPU have no buffer interface: NumPy then asks `__array__`, where the transfer is seen. `function`
    is the slot's address, None for empty. Layout of PyTypeObject: CPython's Include/cpython/object.h, the same in 3.11
    to 3.14.
    """

    function: int | None

    _AS_BUFFER = 20  # words before tp_as_buffer

    def __init__(self, cls: type) -> None:
        word = ctypes.sizeof(ctypes.c_void_p)
        methods = ctypes.c_void_p.from_address(id(cls) + self._AS_BUFFER * word).value
        if methods is None:
            raise InstallError(f"{cls.__name__} has no buffer interface where this Python should keep it")
        slot = ctypes.c_void_p.from_address(methods)
        self.__dict__["_slot"] = slot
        self.__dict__["function"] = slot.value

    def __setattr__(self, name: str, value: int | None) -> None:
        self.__dict__[name] = value
        self.__dict__["_slot"].value = value
