"""A register of a whole warp that is one number for all lanes and a known offset for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.ptx.syntax import Instruction
from windtunnel.ptx.values import LANES

NONE = (0,) * LANES
ALL_ZERO = 64
"""Low bits that are zero in the number 0."""
MOST_THREADS = 1024


@dataclass(frozen=True)
class Line:
    """What each lane adds to the first lane's number."""

    offsets: tuple[int, ...] = NONE
    zeros: int = 0
    """Low bits of the first lane's number that are zero."""
    limit: int | None = None
    """All lanes' numbers are below it and not negative, where that is known."""

    @property
    def same(self) -> bool:
        return self.offsets == NONE

    @property
    def apart(self) -> bool:
        """Whether no offset carries into a bit of the first lane's number."""
        return all(0 <= offset < 1 << self.zeros for offset in self.offsets)


SAME = Line()
Shape = tuple[Line | None, Line | None, Line | None]
"""The thread's index in each direction."""
UNKNOWN: Shape = (None, None, None)


def shape_of(block: Sequence[int]) -> Shape:
    """How the threads of a warp lie in a block of that size."""
    x, y, z = block
    lanes = range(LANES)
    if x % LANES == 0 or y * z == 1:
        return Line(tuple(lanes), 5, MOST_THREADS), SAME, SAME
    if LANES % x:
        return UNKNOWN
    first = Line(tuple(lane % x for lane in lanes), ALL_ZERO, x)
    if x * y % LANES == 0:
        return first, Line(tuple(lane // x for lane in lanes), (LANES // x).bit_length() - 1, MOST_THREADS), SAME
    if LANES % (x * y):
        return first, None, None
    step = (LANES // (x * y)).bit_length() - 1
    return (
        first,
        Line(tuple(lane // x % y for lane in lanes), ALL_ZERO, y),
        Line(tuple(lane // (x * y) for lane in lanes), step, MOST_THREADS),
    )


@dataclass
class Lines:
    """The lines of a kernel's registers, and the instructions that are right only where no lane overflows."""

    of: dict[str, Line]
    checked: dict[Instruction, tuple[str, Line]]
    """With the operand that may."""
