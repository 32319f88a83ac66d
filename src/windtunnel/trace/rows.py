"""Rows of eight 64-bit integers: the in-memory form of everything that happened, 64 bytes a row.

Of many rows the latest lie open and the others compressed, a few bytes each: a long run is to fit in memory whole.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterator

WIDTH = 8
SPILL = 4096 * WIDTH
BLOCK = 16384 * WIDTH
"""Numbers that are compressed together: 1 MiB of them."""
OPEN = 4 * BLOCK
"""Numbers at the end that are not compressed: those are read and changed again."""

Row = tuple[int, int, int, int, int, int, int, int]


class Rows:
    """An append-only table of eight integer columns.

    Writers extend `buffer` with eight numbers at a time and call `spill()` once it holds `SPILL` of them; readers
    iterate. The list is the fast part (a list extend is the cheapest append that Python has), the array the small one.
    `stored` is the end of the table, at least `SPILL` numbers of it if there are as many.
    """

    def __init__(self) -> None:
        self.buffer: list[int] = []
        self.stored = array("q")
        self._packed: list[bytes] = []  # blocks of the rows before those
        self._changed: dict[int, dict[int, int]] = {}  # of packed blocks: what was put where, later
        self._unpacked: tuple[int, array[int]] = -1, array("q")

    def spill(self) -> None:
        """Move what is buffered into the array."""
        # Whoever extends the buffer meanwhile, without a turn of its own: take what was there at one moment, no more.
        taken = self.buffer[:]
        self.stored.extend(taken)
        del self.buffer[: len(taken)]
        self._pack()

    def _pack(self) -> None:
        if len(self.stored) < OPEN + BLOCK:
            return
        first = 0
        while len(self.stored) - first >= OPEN + BLOCK:
            block = self.stored[first : first + BLOCK]
            # Column after column: numbers beside their like take a third of the bytes.
            columns = b"".join(block[column::WIDTH].tobytes() for column in range(WIDTH))
            self._packed.append(zlib.compress(columns, 1))
            first += BLOCK
        self.stored = self.stored[first:]  # another array: somebody may be reading the one that was

    def append(self, row: Row) -> None:
        """Add one row of eight integers."""
        self.buffer.extend(row)
        if len(self.buffer) >= SPILL:
            self.spill()

    def extend(self, data: bytes) -> None:
        """Add rows as `to_bytes` gives them."""
        self.spill()
        added = array("q")
        added.frombytes(data)
        if sys.byteorder != "little":
            added.byteswap()
        for first in range(0, len(added), BLOCK):
            self.stored.extend(added[first : first + BLOCK])
            self._pack()

    def __len__(self) -> int:
        return (len(self._packed) * BLOCK + len(self.stored) + len(self.buffer)) // WIDTH

    def __getitem__(self, index: int) -> Row:
        known = len(self)
        if index < 0:
            index += known
        if not 0 <= index < known:
            raise IndexError(index)
        numbers, at = self._place(index * WIDTH)
        a, b, c, d, e, f, g, h = numbers[at : at + WIDTH]
        return a, b, c, d, e, f, g, h

    def put(self, index: int, column: int, value: int) -> None:
        """Change one number of a row."""
        block, at = divmod(index * WIDTH + column, BLOCK)
        if block < len(self._packed):
            self._changed.setdefault(block, {})[at] = value
            if self._unpacked[0] == block:
                self._unpacked[1][at] = value
            return
        numbers, at = self._place(index * WIDTH + column)
        numbers[at] = value

    def get(self, index: int, column: int) -> int:
        """One number of a row."""
        numbers, at = self._place(index * WIDTH + column)
        return numbers[at]

    def _place(self, position: int) -> tuple[array[int] | list[int], int]:
        """Where a number lies, and at which place there."""
        block, at = divmod(position, BLOCK)
        if block < len(self._packed):
            return self._block(block), at
        position -= len(self._packed) * BLOCK
        stored = len(self.stored)
        return (self.stored, position) if position < stored else (self.buffer, position - stored)

    def _block(self, number: int) -> array[int]:
        """A packed block, as it has come to be."""
        if self._unpacked[0] != number:
            columns = array("q", zlib.decompress(self._packed[number]))
            numbers = array("q", columns)
            length = len(columns) // WIDTH
            for column in range(WIDTH):
                numbers[column::WIDTH] = columns[column * length : (column + 1) * length]
            for at, value in self._changed.get(number, {}).items():
                numbers[at] = value
            self._unpacked = number, numbers
        return self._unpacked[1]

    def pieces(self, first: int = 0) -> Iterator[array[int]]:
        """The numbers of the rows from number `first` on, piece by piece, each of whole rows."""
        self.spill()
        begun, at = divmod(first * WIDTH, BLOCK)
        packed, stored = len(self._packed), self.stored
        for number in range(begun, packed):
            found = self._block(number)
            yield found[at:] if at else found
            at = 0
        at += max(0, begun - packed) * BLOCK
        yield stored[at:] if at else stored

    def __iter__(self) -> Iterator[Row]:
        for numbers in self.pieces():
            each = iter(numbers)
            yield from zip(*([each] * WIDTH), strict=True)

    def since(self, first: int) -> Rows:
        """A copy of the rows from number `first` on."""
        rows = Rows()
        for numbers in self.pieces(first):
            rows.stored.extend(numbers)
            rows._pack()
        return rows

    def column(self, index: int) -> array[int]:
        """One column, as a new array."""
        found = array("q")
        for numbers in self.pieces():
            found.extend(numbers[index::WIDTH])
        return found

    def parts(self) -> Iterator[bytes]:
        """The rows as little-endian 64-bit integers, row after row, in parts of bounded size."""
        for numbers in self.pieces():
            for first in range(0, len(numbers), BLOCK):
                part = numbers[first : first + BLOCK]
                if sys.byteorder != "little":
                    part.byteswap()
                yield part.tobytes()

    def to_bytes(self) -> bytes:
        """The rows as little-endian 64-bit integers, row after row."""
        return b"".join(self.parts())

    @classmethod
    def from_bytes(cls, data: bytes) -> Rows:
        """The inverse of `to_bytes`."""
        rows = cls()
        rows.extend(data)
        return rows
