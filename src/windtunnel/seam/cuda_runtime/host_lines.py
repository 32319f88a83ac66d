"""Which line of a program's host code is running: the frames of its calls, by the line table of its library (DWARF 5).

Sources: the ELF specification; DWARF 5, section 6.2.
"""

from __future__ import annotations

import ctypes
import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

MOST_FRAMES = 128
SECTIONS = (b".debug_line", b".debug_line_str", b".debug_str")
COPY, ADVANCE_PC, ADVANCE_LINE, SET_FILE, CONST_ADD_PC, FIXED_ADVANCE_PC = 1, 2, 3, 4, 8, 9
END_SEQUENCE, SET_ADDRESS = 1, 2
PATH, FOLDER = 1, 2
"""DW_LNCT_path and DW_LNCT_directory_index."""
SIZES = {0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8, 0x1E: 16}
"""Bytes of the forms of a fixed size: data1, data2, data4, data8, data16."""
STRING, LINE_STRP, STRP, UDATA, BLOCK = 0x08, 0x1F, 0x0E, 0x0F, 0x09


class LineRow(NamedTuple):
    """From an address on, which line the instructions are of; none ("") behind the end of a function."""

    address: int
    file: str
    line: int


class TableHeader(NamedTuple):
    """What the program of one source's line table begins with."""

    step: int
    base: int
    span: int
    first_special: int
    operands: bytes
    files: list[str]


class _Reader:
    """A section, read from a place on."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def number(self, size: int) -> int:
        self.at += size
        return int.from_bytes(self.data[self.at - size : self.at], "little")

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def signed(self) -> int:
        begin = self.at
        value = self.unsigned()
        bits = 7 * (self.at - begin)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value

    def text(self, at: int | None = None) -> str:
        begin = self.at if at is None else at
        end = self.data.index(b"\0", begin)
        if at is None:
            self.at = end + 1
        return os.fsdecode(self.data[begin:end])


def _sections(data: bytes) -> dict[bytes, bytes]:
    """The sections of a 64-bit library that lines are read from."""
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    heads = [struct.unpack_from("<IIQQQQ", data, table + size * at) for at in range(count)]
    text = heads[names][4]
    found = {data[text + head[0] : data.index(b"\0", text + head[0])]: head for head in heads}
    return {name: data[found[name][4] : found[name][4] + found[name][5]] if name in found else b"" for name in SECTIONS}


def _entries(reader: _Reader, sections: dict[bytes, bytes]) -> list[tuple[str, int]]:
    """A list of folders or of files: names, and the number of each one's folder."""
    forms = [(reader.unsigned(), reader.unsigned()) for _ in range(reader.number(1))]
    made = []
    for _ in range(reader.unsigned()):
        name, folder = "", 0
        for kind, form in forms:
            value: str | int
            if form == STRING:
                value = reader.text()
            elif form in (LINE_STRP, STRP):
                section = SECTIONS[1] if form == LINE_STRP else SECTIONS[2]
                value = _Reader(sections[section]).text(reader.number(4))
            elif form == BLOCK:
                value = reader.number(reader.unsigned())
            else:
                value = reader.unsigned() if form == UDATA else reader.number(SIZES[form])
            name = str(value) if kind == PATH else name
            folder = int(value) if kind == FOLDER else folder
        made.append((name, folder))
    return made


def _header(reader: _Reader, sections: dict[bytes, bytes]) -> TableHeader:
    reader.at += 2  # sizes of addresses and of segments' numbers
    begin = reader.number(4) + reader.at
    step, _, _, base, span, first = (reader.number(1) for _ in range(6))
    operands = bytes(reader.number(1) for _ in range(first - 1))
    folders = [name for name, _ in _entries(reader, sections)]
    files = [os.path.join(folders[0], folders[folder], name) for name, folder in _entries(reader, sections)]
    reader.at = begin
    return TableHeader(step, base - 256 if base > 127 else base, span, first, operands, files)


def rows(library: Path) -> Iterator[LineRow]:
    """The line table of a library, by the addresses that it is linked for; tables of other versions are left out."""
    sections = _sections(library.read_bytes())
    reader = _Reader(sections[SECTIONS[0]])
    while reader.at < len(reader.data):
        end = reader.number(4) + reader.at
        if reader.number(2) == 5:
            yield from _of_source(reader, end, _header(reader, sections))
        reader.at = end


def _of_source(reader: _Reader, end: int, header: TableHeader) -> Iterator[LineRow]:
    address, file, line = 0, 1, 1
    while reader.at < end:
        code = reader.number(1)
        if code >= header.first_special:
            advance, more = divmod(code - header.first_special, header.span)
            address, line = address + advance * header.step, line + header.base + more
            yield LineRow(address, header.files[file], line)
        elif code == 0:
            size = reader.unsigned()
            following = reader.at + size
            kind = reader.number(1)
            if kind == END_SEQUENCE:
                yield LineRow(address, "", 0)
                address, file, line = 0, 1, 1
            elif kind == SET_ADDRESS:
                address = reader.number(size - 1)
            reader.at = following
        elif code == COPY:
            yield LineRow(address, header.files[file], line)
        elif code == ADVANCE_PC:
            address += reader.unsigned() * header.step
        elif code == ADVANCE_LINE:
            line += reader.signed()
        elif code == SET_FILE:
            file = reader.unsigned()
        elif code == CONST_ADD_PC:
            address += (255 - header.first_special) // header.span * header.step
        elif code == FIXED_ADVANCE_PC:
            address += reader.number(2)
        else:
            for _ in range(header.operands[code - 1]):
                reader.unsigned()


class HostLines:
    """The lines of a loaded library's host code."""

    def __init__(self, library: Path, base: int, hidden: tuple[str, ...]) -> None:
        self._rows = sorted(rows(library), key=lambda row: (row.address, row.file != ""))
        self._starts = [row.address for row in self._rows]
        self._base = base
        self._hidden = hidden
        self.of = lru_cache(1 << 16)(self._of)

    def _of(self, address: int) -> tuple[str, int] | None:
        """The line of the instruction at an address in this process; None where it is none of the program's own."""
        at = bisect_right(self._starts, address - self._base) - 1
        row = self._rows[at] if at >= 0 else None
        return (row.file, row.line) if row and row.line and not row.file.startswith(self._hidden) else None

    def running(self, instruction: int = 0) -> tuple[str, int] | None:
        """The line that runs: of an interrupted instruction, else of the innermost call that is the program's own."""
        found = self.of(instruction) if instruction else None
        if found is not None:
            return found
        frames = (ctypes.c_void_p * MOST_FRAMES)()
        for frame in frames[: _backtrace()(frames, MOST_FRAMES)]:
            found = self.of(frame - 1) if frame else None
            if found is not None:
                return found
        return None


@cache
def _backtrace() -> Callable[[object, int], int]:
    found = ctypes.CDLL(None).backtrace
    found.argtypes = (ctypes.c_void_p, ctypes.c_int)
    return found


class _Origin(ctypes.Structure):
    """`Dl_info`."""

    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("address", ctypes.c_void_p)]  # fmt: skip


def loaded_at(function: int) -> int:
    """Where the library begins in this process that an address is in."""
    origin = _Origin()
    ctypes.CDLL(None).dladdr(ctypes.c_void_p(function), ctypes.byref(origin))
    return origin.base or 0
