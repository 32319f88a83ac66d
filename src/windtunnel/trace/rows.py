"""Rows of eight 64-bit integers: the in-memory form of everything that happened, 64 bytes a row."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator

WIDTH = 8
SPILL = 4096 * WIDTH

Row = tuple[int, int, int, int, int, int, int, int]


class Rows:
    """An append-only table of eight integer columns.

    Writers extend `buffer` with eight numbers at a time and call `spill()` once it holds `SPILL` of them; readers
    iterate. The list is the fast part (a list extend is the cheapest append that Python has), the array the small one.
    """

    def __init__(self) -> None:
        self.buffer: list[int] = []
        self.stored = array("q")

    def spill(self) -> None:
        """Move what is buffered into the array."""
        # Whoever extends the buffer meanwhile, without a turn of its own: take what was there at one moment, no more.
        taken = self.buffer[:]
        self.stored.extend(taken)
        del self.buffer[: len(taken)]

    def append(self, row: Row) -> None:
        """Add one row of eight integers."""
        self.buffer.extend(row)
        if len(self.buffer) >= SPILL:
            self.spill()

    def __len__(self) -> int:
        return (len(self.stored) + len(self.buffer)) // WIDTH

    def __getitem__(self, index: int) -> Row:
        self.spill()
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        a, b, c, d, e, f, g, h = self.stored[index * WIDTH : (index + 1) * WIDTH]
        return a, b, c, d, e, f, g, h

    def put(self, index: int, column: int, value: int) -> None:
        """Change one number of a row."""
        position = index * WIDTH + column
        stored = len(self.stored)
        if position < stored:
            self.stored[position] = value
        else:
            self.buffer[position - stored] = value

    def get(self, index: int, column: int) -> int:
        """One number of a row."""
        position = index * WIDTH + column
        stored = len(self.stored)
        return self.stored[position] if position < stored else self.buffer[position - stored]

    def __iter__(self) -> Iterator[Row]:
        self.spill()
        numbers = iter(self.stored)
        return zip(*([numbers] * WIDTH), strict=True)

    def since(self, first: int) -> Rows:
        """A copy of the rows from number `first` on."""
        self.spill()
        rows = Rows()
        rows.stored = self.stored[first * WIDTH :]
        return rows

    def column(self, index: int) -> array[int]:
        """One column, as a new array."""
        self.spill()
        return self.stored[index::WIDTH]

    def to_bytes(self) -> bytes:
        """The rows as little-endian 64-bit integers, row after row."""
        self.spill()
        if sys.byteorder == "little":
            return self.stored.tobytes()
        swapped = array("q", self.stored)
        swapped.byteswap()
        return swapped.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Rows:
        """The inverse of `to_bytes`."""
        rows = cls()
        rows.stored.frombytes(data)
        if sys.byteorder != "little":
            rows.stored.byteswap()
        return rows
