"""Whether what a kernel gives depends on a variable of its own that nothing has set, or on lanes that are not there.

The compiler hands over a second form of the module, in which such variables hold an input (`compiler/unset.py`). After
a launch the kernel runs twice more from the same memory, with another input each time: what differs depends on it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence

from windtunnel.compiler.unset import INPUT, ROOM, Unset
from windtunnel.ptx.faults import KernelFault
from windtunnel.ptx.memory import Allocation

USED = re.compile(rf"\b{INPUT}(?:\+(\d+))?\b")
MOST_BYTES = 1 << 28
"""Memory that a launch may write and that is kept for this."""
PART = 1 << 12
NOWHERE = (0, 0, 0), (0, 0, 0)
NO_SITE = -1
EXTREMES = 0x7BFF7BFF, 0xFBFFFBFF - (1 << 32)
"""High and low, as an integer and in all floating-point formats: a maximum shows the one, a minimum the other."""


class Saved:
    """The bytes of the allocations that a launch may write, before it; of those that it does not read as well, what is
    there now will do."""

    def __init__(self, allocations: Sequence[Allocation], kept: Callable[[Allocation], bool]) -> None:
        self.allocations = allocations
        self._bytes = [ctypes.string_at(a.start, a.size) if kept(a) else None for a in allocations]

    def now(self) -> list[bytes]:
        return [ctypes.string_at(a.start, a.size) for a in self.allocations]

    def before(self, now: Sequence[bytes]) -> list[bytes]:
        """What a launch begins with, if it ended with what is there now."""
        return [left if saved is None else saved for saved, left in zip(self._bytes, now, strict=True)]

    def put(self, values: Sequence[bytes]) -> None:
        for allocation, value in zip(self.allocations, values, strict=True):
            ctypes.memmove(allocation.start, value, len(value))


def dependent(
    variables: Sequence[Unset],
    used: Sequence[int],
    where: int,
    saved: Saved,
    launched: Callable[[], str | None],
    named: Callable[[int], str | None],
) -> tuple[KernelFault, ...]:
    """The faults of a launch that has just been; `launched` runs the other form and says how it ended, `where` is its
    input, `named` says which argument has an address. The memory is left as the launch left it."""
    left = saved.now()
    begun = saved.before(left)

    def outcome(chosen: Sequence[int]) -> tuple[str | None, list[bytes]]:
        ctypes.memset(where, 0, ROOM * len(variables))
        for number in chosen:
            ctypes.memset(where + ROOM * number, 0xFF, ROOM)
        saved.put(begun)
        return launched(), saved.now()

    try:
        zero = outcome([])
        if zero[0] is not None or outcome(used) == zero:
            return ()
        found = []
        for number in used:
            at = _different(saved.allocations, zero, outcome([number]), variables[number].plain)
            if at is not None:
                found.append(_fault(variables[number], *at, named))
        return tuple(found)
    finally:
        saved.put(left)


def mattering(sites: Sequence[int], saved: Saved, launched: Callable[[int, int], str | None]) -> list[int]:
    """The sites whose undefined values what a launch gives depends on: `launched` runs it with a number in their place
    at a site, and zeros at all others. The memory is left as the launch left it."""
    left = saved.now()
    begun = saved.before(left)

    def outcome(site: int, number: int) -> tuple[str | None, list[bytes]]:
        saved.put(begun)
        return launched(site, number), saved.now()

    def matters(site: int) -> bool:
        return any(_different(saved.allocations, zero, outcome(site, one), True) is not None for one in EXTREMES)

    try:
        zero = outcome(NO_SITE, EXTREMES[0])
        return [site for site in sites if matters(site)]
    finally:
        saved.put(left)


def _different(
    allocations: Sequence[Allocation], zero: tuple[str | None, list[bytes]], ones: tuple[str | None, list[bytes]],
    plain: bool,
) -> tuple[Allocation | None, int] | None:  # fmt: skip
    """The first byte that depends on a variable; no allocation: it decides whether the kernel ends in an error."""
    if ones[0] != zero[0]:
        return None, 0
    for allocation, a, b in zip(allocations, zero[1], ones[1], strict=True):
        for begin in range(0, len(a), PART) if a != b else ():
            parts = a[begin : begin + PART], b[begin : begin + PART]
            for at, (x, y) in enumerate(zip(*parts, strict=True)) if parts[0] != parts[1] else ():
                if x != y and (plain or (x, y) != (0, 0xFF)):
                    return allocation, begin + at
    return None


def _fault(
    variable: Unset, allocation: Allocation | None, offset: int, named: Callable[[int], str | None]
) -> KernelFault:
    what, address, argument = "Whether the kernel ends in an error", 0, None
    if allocation is not None:
        address = allocation.start + offset
        argument = named(address)
        what = f"The byte at offset {offset} of {argument or allocation.name or 'what the kernel writes'}"
    message = (
        f"{what} depends on the variable {variable.name}, declared here: some thread uses it, or an element of it, "
        f"before anything is written there"
    )
    return KernelFault("uninitialized-read", message, variable.file, variable.line, *NOWHERE, argument, address)
