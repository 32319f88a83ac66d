"""Managed memory, which host code reads with plain instructions: too early, if it does not wait for the kernel first.

Pages that a launch has written whole cannot be touched until the host is ordered after it. Whoever touches one gets
SIGSEGV, whose handler notes the line and lets him go on: what he finds are the kernel's values, where a GPU may show
older ones. A page of which the kernel has written a part stays open: its rest may be used at any time.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

from windtunnel import ptx

SUPPORTED = sys.platform == "linux" and sys.maxsize > 1 << 32
"""Where the structures below are those of the system."""
ADDRESS_AT = 16
"""Of `si_addr` in `siginfo_t`."""
SIGINFO, NODEFER = 4, 0x40000000
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class Action(ctypes.Structure):
    """`struct sigaction` of Linux's C libraries, on 64 bits."""

    _fields_ = [("handler", ctypes.c_void_p), ("mask", ctypes.c_ubyte * 128), ("flags", ctypes.c_int),
                ("restorer", ctypes.c_void_p)]  # fmt: skip


class ClosedPages(NamedTuple):
    """Pages that the host must not touch before it is ordered after what wrote them."""

    low: int
    high: int
    written: Callable[[], bool]
    """Whether the host is ordered after it by now."""
    touched: Callable[[], None]
    """What to do if it is not."""


class ManagedMemory:
    """The watched pages of one emulation."""

    def __init__(self) -> None:
        self._watched: list[ClosedPages] = []
        _every.add(self)

    def watch(self, pages: Sequence[tuple[int, int]], written: Callable[[], bool], touched: Callable[[], None]) -> None:
        """Close pages that a launch has written whole."""
        for low, high in pages:
            _handler.install()
            self._watched.append(ClosedPages(low, high, written, touched))
            _protect(low, high, readable=False)

    def release(self) -> bool:
        """Open what the host is ordered after, where that may have changed; says whether any is left."""
        self._keep(lambda one: not one.written())
        return bool(self._watched)

    def close(self) -> None:
        """At the end, open all."""
        self._keep(lambda one: False)

    def forget(self, allocation: ptx.Allocation) -> None:
        """Open an allocation's pages for good."""
        self._keep(lambda one: not allocation.start <= one.low < allocation.start + allocation.size)

    def _keep(self, wanted: Callable[[ClosedPages], bool]) -> None:
        before, self._watched = self._watched, []
        for one in before:
            if wanted(one):
                self._watched.append(one)
            else:
                _protect(one.low, one.high, readable=True)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The emulation itself uses the memory, in the order of the streams."""
        before, self._watched = self._watched, []
        for one in before:
            _protect(one.low, one.high, readable=True)
        try:
            yield
        finally:
            for one in before:
                if not one.written():
                    self._watched.append(one)
                    _protect(one.low, one.high, readable=False)

    def fault(self, address: int) -> bool:
        """The host touches an address that is closed; says whether it is one of these pages, which is open then."""
        found = next((one for one in self._watched if one.low <= address < one.high), None)
        if found is None:
            return False
        self._watched.remove(found)
        _protect(found.low, found.high, readable=True)
        if not found.written():
            found.touched()
        return True


class _Handler:
    """The process's handler of SIGSEGV, before the one that was there."""

    def __init__(self) -> None:
        self.before = Action()
        self.callback = HANDLER(self._handle)
        self.own = Action(ctypes.cast(self.callback, ctypes.c_void_p).value, flags=SIGINFO | NODEFER)

    def install(self) -> None:
        current = Action()
        _libc().sigaction(signal.SIGSEGV, None, ctypes.byref(current))
        if current.handler != self.own.handler:
            _libc().sigaction(signal.SIGSEGV, ctypes.byref(self.own), ctypes.byref(self.before))

    def _handle(self, number: int, information: int, context: int) -> None:
        address = ctypes.c_uint64.from_address(information + ADDRESS_AT).value
        if not any(one.fault(address) for one in list(_every)):  # the instruction comes again, to whom it concerns
            _libc().sigaction(number, ctypes.byref(self.before), None)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _protect(low: int, high: int, readable: bool) -> None:
    mode = mmap.PROT_READ | mmap.PROT_WRITE if readable else 0
    _libc().mprotect(ctypes.c_void_p(low), ctypes.c_size_t(high - low), mode)


_every: weakref.WeakSet[ManagedMemory] = weakref.WeakSet()
_handler = _Handler()
