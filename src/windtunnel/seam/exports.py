"""Arrays that left an emulated GPU by DLPack: where another framework finds them again.

Their bytes lie in host memory, so a capsule says that it is the host's. What it cannot say is kept here: from the
memory's first byte to the GPU, for as long as the one that lends it lives.
"""

from __future__ import annotations

import weakref
from typing import Protocol

HOST = -1


class Lent:
    """Memory of `size` bytes on the emulated GPU `device`, lent by a framework that has no tags of its own."""

    __slots__ = ("__weakref__", "device", "size")

    def __init__(self, device: int, size: int) -> None:
        self.device = device
        self.size = size


class LentMemory(Protocol):
    """Memory of `size` bytes on the emulated GPU `device`."""

    device: int
    size: int


_lent: weakref.WeakValueDictionary[int, LentMemory] = weakref.WeakValueDictionary()


def lend(pointer: int, place: LentMemory) -> None:
    """Remember that the memory from address `pointer` is `place`.

    Memory that was received and is handed on stays its first lender's.
    """
    _lent.setdefault(pointer, place)


def place_at(pointer: int) -> LentMemory | None:
    """What was lent and holds the byte at address `pointer`; None where that is nobody's."""
    around = [(begin, place) for begin, place in _lent.items() if begin <= pointer < begin + max(1, place.size)]
    return max(around, key=lambda entry: entry[0])[1] if around else None
