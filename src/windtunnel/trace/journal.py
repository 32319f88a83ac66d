"""A trace as it is written while the program runs: pages appended to a file, readable wherever the writing ended.

A page is one byte that names its kind, eight bytes of length, and its content: the new entries of the tables, new rows,
facts, or the mark that the process ended in order. A reader takes the whole pages; what a killed process had begun to
write is not one. Rows of the allocators' history come with the end, since their owners are known late.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from windtunnel import foreign
from windtunnel.errors import FORMER_NAME, FileFormatError, renamed
from windtunnel.trace.plain import Json
from windtunnel.trace.rows import WIDTH, Rows
from windtunnel.trace.schema import Entries
from windtunnel.trace.trace import Trace, built

MAGIC = b"windtunnel-journal 2\n"
HEAD = struct.Struct("<cq")
TABLES, ROWS, MEMORY, MORE_MEMORY, FACTS, SOURCES, END = b"T", b"R", b"M", b"N", b"F", b"S", b"E"
"""MEMORY begins the history anew: should a process go on after the end, another one follows."""
ROW = WIDTH * 8
TABLE_NAMES = ("lanes", "signatures", "sites", "roles", "hazards", "notes")


class Pages:
    """What has been added to a trace since it was last asked for, as bytes to append."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.written = 0
        """Rows that are in pages already."""
        self._entries = dict.fromkeys(TABLE_NAMES, 0)

    def new(self) -> Iterator[bytes]:
        """Pages of the rows that came since the last call, after the entries of the tables that they refer to."""
        found = self.trace.rows.since(self.written)
        self.written += len(found)
        entries = {}
        for name, known in self._entries.items():
            added = list(getattr(self.trace, name)[known:])
            if added:
                entries[name] = added
                self._entries[name] = known + len(added)
        if entries:
            yield _page(TABLES, _json(entries))
        yield from (_page(ROWS, part) for part in found.parts())

    def facts(self) -> bytes:
        """A page of the facts as they are now; the last one counts."""
        return _page(FACTS, _json(self.trace.facts))

    def last(self) -> Iterator[bytes]:
        """What is still missing, and the mark that nothing is."""
        yield from self.new()
        self.trace.keep_sources()
        for number, part in enumerate(self.trace.memory.parts()):
            yield _page(MORE_MEMORY if number else MEMORY, part)
        yield self.facts() + _page(SOURCES, _json(self.trace.sources)) + _page(END, b"")


def read(path: str | Path) -> tuple[Trace, bool]:
    """The trace in a journal, and whether its process ended in order, so that nothing is missing.

    Raises:
        FileFormatError: the file is not a journal of ours.
        OSError: the file cannot be read.
    """
    with foreign.opened(path) as file:
        return _read(file, path)


def _read(file: BinaryIO, path: str | Path) -> tuple[Trace, bool]:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    begun = file.read(len(MAGIC))
    if begun.startswith(FORMER_NAME.encode()):
        raise FileFormatError(renamed(f"the journal {path}", "run the program again"))
    if begun != MAGIC:
        raise FileFormatError(f"{path} has no records that this version of windtunnel can read: run the program again")
    header: Json = {name: [] for name in TABLE_NAMES}
    rows, memory = Rows(), Rows()
    kind = b""
    while len(head := file.read(HEAD.size)) == HEAD.size:
        kind, length = HEAD.unpack(head)
        if not 0 <= length <= size - file.tell():
            break
        page = file.read(length)
        match kind:
            case b"T":
                for name, entries in foreign.typed(foreign.from_json(page, path), Entries, path, "is damaged").items():
                    header[name] += entries
            case b"R":
                rows.extend(page[: length // ROW * ROW])
            case b"M":
                memory = Rows.from_bytes(page[: length // ROW * ROW])
            case b"N":
                memory.extend(page[: length // ROW * ROW])
            case b"F":
                header["facts"] = foreign.from_json(page, path)
            case b"S":
                header["sources"] = foreign.from_json(page, path)
    return built(header, rows, memory, str(path)), kind == END and not head


def _page(kind: bytes, content: bytes) -> bytes:
    return HEAD.pack(kind, len(content)) + content


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
