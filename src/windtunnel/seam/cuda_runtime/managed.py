"""Memory that host code and GPUs use, by plain instructions of the host's: too early, if it does not wait first.

Pages that a launch or a copy has written whole cannot be touched until the host is ordered after it, and those that a
copy reads cannot be written. Whoever does gets SIGSEGV, whose handler notes the line and lets him go on: what he finds
are the new values, where a GPU may show older ones. A page that is used in part stays open: its rest may be used at any
time.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
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
REGISTERS_AT = {"x86_64": (40 + 8 * 16, 40 + 8 * 19)}
"""In `ucontext_t`, of the instruction's address (REG_RIP) and of the word whose second bit says that it was a write
(REG_ERR), on processors that have both."""
OPEN = mmap.PROT_READ | mmap.PROT_WRITE
MOST_CLOSED = 64
"""Ranges of pages that are closed at the same time: each use by the emulation itself goes through them."""
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
    work: PendingWork
    touched: Callable[[bool, int], None]
    """What to do if it is not: whether it was a write, and by which instruction, 0 where nobody knows."""
    readable: bool = False
    """Whether the host may read them all the same."""


class PendingWork(NamedTuple):
    """What the host has to wait for: the work of a stream, up to a number."""

    agent: int
    epoch: int


class ManagedMemory:
    """The watched pages of one emulation."""

    def __init__(self, over: Callable[[int, int], bool]) -> None:
        self._over = over  # whether the host is ordered after the work of a stream
        self._watched: list[ClosedPages] = []
        _every.add(self)

    def watch(self, pages: Sequence[ClosedPages]) -> None:
        """Close pages that a launch or a copy uses, unless many are closed already."""
        if pages and SUPPORTED and len(self._watched) < MOST_CLOSED:
            _handler.install()
            self._watched += pages
            self._close(self._in([(one.low, one.high) for one in pages]))

    def release(self, known: Callable[[int, int], bool] | None = None) -> bool:
        """Open what the host is ordered after, where that may have changed; says whether any is left."""
        over = known or self._over
        self._keep(lambda one: not over(*one.work))
        return bool(self._watched)

    def close(self) -> None:
        """At the end, open all."""
        self._keep(lambda one: False)

    def forget(self, allocation: ptx.Allocation) -> None:
        """Open an allocation's pages for good."""
        self._keep(lambda one: not one.low < allocation.start + allocation.size or one.high <= allocation.start)

    def _keep(self, wanted: Callable[[ClosedPages], bool]) -> None:
        kept: list[ClosedPages] = []
        dropped: list[ClosedPages] = []
        for one in self._watched:
            (kept if wanted(one) else dropped).append(one)
        self._watched = kept
        if dropped:
            self._open(dropped)
            self._close(self._in([(one.low, one.high) for one in dropped]))

    def _in(self, ranges: Sequence[tuple[int, int]]) -> list[ClosedPages]:
        return [one for one in self._watched if any(low < one.high and one.low < high for low, high in ranges)]

    def _open(self, pages: Sequence[ClosedPages]) -> None:
        for one in pages:
            _protect(one.low, one.high, OPEN)

    def _close(self, pages: Sequence[ClosedPages]) -> None:
        for one in sorted(pages, key=lambda one: not one.readable):  # a page may be in several
            _protect(one.low, one.high, mmap.PROT_READ if one.readable else 0)

    @contextmanager
    def opened(self, ranges: Sequence[tuple[int, int]] | None = None) -> Iterator[None]:
        """The emulation itself uses the memory (all of it, or some), in the order of the streams."""
        before = self._watched if ranges is None else self._in(ranges)
        self._open(before)
        chosen = set(map(id, before))
        self._watched = [one for one in self._watched if id(one) not in chosen]
        try:
            yield
        finally:
            left = [one for one in before if not self._over(*one.work)]
            self._watched += left
            self._close(left)

    def fault(self, address: int, write: bool, instruction: int) -> bool:
        """The host touches an address that is closed; says whether it is one of these pages, which are open then."""
        found = [one for one in self._watched if one.low <= address < one.high]
        self._keep(lambda one: one not in found)
        write = write or all(one.readable for one in found)
        for one in found:
            if not self._over(*one.work) and (write or not one.readable):
                one.touched(write, instruction)
        return bool(found)


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
        places = REGISTERS_AT.get(platform.machine(), ())
        instruction, error = (ctypes.c_uint64.from_address(context + at).value for at in places) if places else (0, 0)
        write = bool(error & 2)
        # The instruction comes again, to whom it concerns.
        if not any(one.fault(address, write, instruction) for one in list(_every)):
            _libc().sigaction(number, ctypes.byref(self.before), None)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def whole_pages(low: int, high: int, owned: tuple[int, int]) -> tuple[int, int]:
    """The pages in a range of memory, with those at its ends that hold nothing else of what is `owned`."""
    size = mmap.PAGESIZE
    first = low // size * size if low == owned[0] else -(-low // size) * size
    last = -(-high // size) * size if high == owned[1] else high // size * size
    return first, max(first, last)


def _protect(low: int, high: int, mode: int) -> None:
    _libc().mprotect(ctypes.c_void_p(low), ctypes.c_size_t(high - low), mode)


_every: weakref.WeakSet[ManagedMemory] = weakref.WeakSet()
_handler = _Handler()
